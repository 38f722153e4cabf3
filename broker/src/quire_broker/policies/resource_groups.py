"""Resource groups: rates that the topics of several namespaces share, and how brokers divide them. Pure.

    /admin/resourcegroups/<name>   {"publishRateInMsgs", "publishRateInBytes",
                                    "dispatchRateInMsgs", "dispatchRateInBytes"}
    policies of a namespace        {"resource_group_name": <name>}

The names are those of Pulsar. A rate that is missing, -1 or 0 limits nothing; other brokers may store lower ones, which
limit nothing either. Brokers divide a rate so that the
parts together are the rate: each gets what it uses and a little more, and those that use their whole part share the
rest equally (max-min fairness).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from quire_broker.policies.fields import INT_MAX, LONG_MAX, object_of, whole
from quire_broker.policies.rates import DispatchRate, PublishRate

GROUP: Final = "resource_group_name"
"""Field of a namespace's policies."""
RATES: Final = ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes")
NO_LIMIT: Final = -1
"""What tools send and show for a rate that is not limited."""
_MESSAGES, _BYTES = whole(NO_LIMIT, INT_MAX), whole(NO_LIMIT, LONG_MAX)
FORM: Final = object_of(
    publishRateInMsgs=_MESSAGES, publishRateInBytes=_BYTES, dispatchRateInMsgs=_MESSAGES, dispatchRateInBytes=_BYTES
)
_GROWTH: Final = 1.25
"""A broker that does not use its whole part may grow by this factor until the next division."""
_LEAST: Final = 0.01
"""Of the rate: what a broker without traffic may begin with."""
_FULL: Final = 0.9
"""A broker that uses this much of its part could use more."""


class Demand(NamedTuple):
    """What the topics of a group did at one broker, per second."""

    used: float = 0.0
    is_full: bool = True
    """Whether it used its whole part, or has just begun: then it is unknown what it could use."""


def flaw_of_group(value: Any) -> str | None:
    """Return why a value may not be stored as a resource group; None: it may."""
    expected = FORM(value)
    return f"a resource group must be {expected}" if expected else None


def rates_of(group: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return the rates of a group in the order of `RATES`; 0: no limit. Invalid values limit nothing."""
    values = [(group or {}).get(name) for name in RATES]
    return tuple(max(0, value) if type(value) is int else 0 for value in values)


def limits_of(parts: Sequence[int]) -> tuple[PublishRate, DispatchRate]:
    """Return the rates of publishing and of delivery of a broker's part of each rate."""
    return PublishRate(parts[0], parts[1]), DispatchRate(parts[2], parts[3])


def is_full(used: float, part: int) -> bool:
    """Return whether a broker used its part of a rate."""
    return part > 0 and used >= _FULL * part


def part_of(rate: int, mine: Demand, others: Sequence[Demand]) -> int:
    """Return the part of a rate that one broker may use; at least 1, because 0 limits nothing."""
    if rate <= 0:
        return 0
    wishes = [math.inf if one.is_full else one.used * _GROWTH + rate * _LEAST for one in (mine, *others)]
    left, mine_gets, open_places = float(rate), 0.0, len(wishes)
    for wish, place in sorted((wish, place) for place, wish in enumerate(wishes)):
        got = min(wish, left / open_places)
        left, open_places = left - got, open_places - 1
        mine_gets += got if place == 0 else 0.0
    return max(1, int(mine_gets + left / len(wishes)))
