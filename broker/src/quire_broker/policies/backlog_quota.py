"""The backlog quotas of a namespace. Values only.

    backlog_quota_map   {"destination_storage": {"limitSize": bytes, "limitTime": s, "policy": ...},
                         "message_age":         {the same}}

The first kind uses only `limitSize`, the second only `limitTime`. -1 is no limit, even if the broker has a default.
Source: Pulsar's namespace policies.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from quire_bookie.dataclass import dataclass

QUOTA_KEY = "backlog_quota_map"
NO_LIMIT = -1


class QuotaKind(StrEnum):
    """The measured quantity: bytes behind the slowest subscription, or the age of its oldest unconsumed message."""

    SIZE = "destination_storage"
    AGE = "message_age"

    @property
    def field(self) -> str:
        """The field of a quota that holds its limit."""
        return "limitSize" if self is QuotaKind.SIZE else "limitTime"


class QuotaPolicy(StrEnum):
    """The action when the limit is exceeded."""

    HOLD = "producer_request_hold"
    REFUSE = "producer_exception"
    EVICT = "consumer_backlog_eviction"


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """A limit above 0, in bytes or in seconds depending on its kind."""

    limit: int
    policy: QuotaPolicy = QuotaPolicy.HOLD


@dataclass(frozen=True, slots=True)
class BacklogQuotas:
    """The quotas of one topic. None means no limit of that kind."""

    size: BacklogQuota | None = None
    age: BacklogQuota | None = None


def quotas_of(policies: Mapping[str, Any], default: BacklogQuotas) -> BacklogQuotas:
    """Return the quotas of a namespace. Fields of its node that do not have the form above are ignored."""
    stored = policies.get(QUOTA_KEY)
    if not isinstance(stored, Mapping) or not stored:
        return default
    return BacklogQuotas(
        _quota(stored.get(QuotaKind.SIZE), QuotaKind.SIZE, default.size),
        _quota(stored.get(QuotaKind.AGE), QuotaKind.AGE, default.age),
    )


def _quota(stored: object, kind: QuotaKind, default: BacklogQuota | None) -> BacklogQuota | None:
    if not isinstance(stored, Mapping) or flaw_of_quota(stored, kind) is not None:
        return default
    limit = stored.get(kind.field, NO_LIMIT)
    return BacklogQuota(limit, QuotaPolicy(stored["policy"])) if limit > 0 else None


def flaw_of_quota(stored: Mapping[str, Any], kind: QuotaKind) -> str | None:
    """Return the error in a stored quota, or None."""
    for field in (each.field for each in QuotaKind):
        limit = stored.get(field, NO_LIMIT)
        if type(limit) is not int or limit < NO_LIMIT:
            return f"{field} is {limit!r}; use a number above 0, or -1 for no limit"
    if stored.get(kind.field, NO_LIMIT) == 0:
        return f"{kind.field} is 0; use a number above 0, or -1 for no limit"
    if stored.get("policy") not in list(QuotaPolicy):
        return f"policy is {stored.get('policy')!r}; use one of {', '.join(QuotaPolicy)}"
    return None
