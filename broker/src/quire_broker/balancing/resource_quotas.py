"""Resource quotas: the traffic that administrators expect of bundles whose load no broker has measured.

    /loadbalance/resource-quota/<t>/<ns>/<bundle>   {"msgRateIn", "msgRateOut", "bandwidthIn", "bandwidthOut", ...}
    /loadbalance/resource-quota/default             the same, for bundles without a quota of their own

Rates per second; bandwidth in bytes per second. The leader assigns such a bundle by the weight of this traffic, without
a quota by that of an average bundle. A quota limits nothing.
"""

import logging
from typing import Any, Final

from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.store import Get, MetadataStore
from quire_broker.balancing.load_report import number_of
from quire_broker.balancing.plan.loads import BundleName, weight
from quire_broker.policies.fields import LONG_MAX, Check, flag, object_of
from quire_broker.policies.store import Json, decode_json

QUOTAS: Final = "/loadbalance/resource-quota"
DEFAULT: Final = "default"
SHOWN_DEFAULT: Final[Json] = {
    "msgRateIn": 40.0,
    "msgRateOut": 120.0,
    "bandwidthIn": 100000.0,
    "bandwidthOut": 300000.0,
    "memory": 80.0,
    "dynamic": True,
}
"""What stock brokers return while no quota is stored."""
_log = logging.getLogger("quire.broker.balancing")


def _flaw_of_amount(value: Any) -> str | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONG_MAX
    return None if good else f"a number from 0 to {LONG_MAX}"


_AMOUNT: Final = Check(_flaw_of_amount, {"type": "number", "format": "double", "minimum": 0, "maximum": LONG_MAX})
_FORM: Final = object_of(
    ("msgRateIn", "msgRateOut", "bandwidthIn", "bandwidthOut"),
    msgRateIn=_AMOUNT,
    msgRateOut=_AMOUNT,
    bandwidthIn=_AMOUNT,
    bandwidthOut=_AMOUNT,
    memory=_AMOUNT,
    dynamic=flag,
)


def flaw_of_quota(value: Any) -> str | None:
    """Return why a value may not be stored as a quota; None: it may."""
    expected = _FORM(value)
    return f"a resource quota must be {expected}" if expected else None


def weight_of_quota(quota: Json) -> float:
    """Return the weight of the expected traffic, see `loads.weight`."""
    messages = number_of(quota, "msgRateIn") + number_of(quota, "msgRateOut")
    return weight(messages, number_of(quota, "bandwidthIn") + number_of(quota, "bandwidthOut"), 0)


async def expected_weight(metadata: MetadataStore, bundle: BundleName) -> float | None:
    """Return the weight that a bundle is expected to have; None: no quota says. MetadataError."""
    for nodes in await metadata.read([Get(f"{QUOTAS}/{bundle}"), Get(f"{QUOTAS}/{DEFAULT}")]):
        for node in nodes:
            try:
                return weight_of_quota(decode_json(node.key, node.value))
            except MetadataFormatError as error:
                _log.info("a resource quota is not used: %s", error)
    return None
