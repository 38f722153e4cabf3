"""What a namespace allows its topics' subscriptions to be behind. Values only.

    backlog_quota_map   {"destination_storage": {"limitSize": bytes, "limitTime": s, "policy": ...},
                         "message_age":         {the same}}

The first kind looks at `limitSize` only, the second at `limitTime`; -1 is no limit, also where the broker has one by
default. Source: stock Pulsar's namespace policies.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

QUOTA_KEY = "backlog_quota_map"
NO_LIMIT = -1


class QuotaKind(StrEnum):
    """What is measured: bytes behind the slowest subscription, or the age of the oldest message that it has not."""

    SIZE = "destination_storage"
    AGE = "message_age"

    @property
    def field(self) -> str:
        """The field of a quota that holds its limit."""
        return "limitSize" if self is QuotaKind.SIZE else "limitTime"


class QuotaPolicy(StrEnum):
    """What happens beyond the limit."""

    HOLD = "producer_request_hold"
    REFUSE = "producer_exception"
    EVICT = "consumer_backlog_eviction"


@dataclass(frozen=True, slots=True)
class BacklogQuota:
    """A limit, in bytes or in seconds as its kind says, above 0."""

    limit: int
    policy: QuotaPolicy = QuotaPolicy.HOLD


@dataclass(frozen=True, slots=True)
class BacklogQuotas:
    """Of one topic. None: no limit of that kind."""

    size: BacklogQuota | None = None
    age: BacklogQuota | None = None


def quotas_of(policies: Mapping[str, Any], default: BacklogQuotas) -> BacklogQuotas:
    """What holds in a namespace. What its node says in another form than above is taken as not said."""
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
    """What is wrong with a stored quota, if anything."""
    for field in (each.field for each in QuotaKind):
        limit = stored.get(field, NO_LIMIT)
        if type(limit) is not int or limit < NO_LIMIT:
            return f"{field} is {limit!r}; needed is a number above 0, or -1 for no limit"
    if stored.get(kind.field, NO_LIMIT) == 0:
        return f"{kind.field} is 0; needed is a number above 0, or -1 for no limit"
    if stored.get("policy") not in list(QuotaPolicy):
        return f"policy is {stored.get('policy')!r}; there are {', '.join(QuotaPolicy)}"
    return None
