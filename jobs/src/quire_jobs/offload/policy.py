"""Which ledgers of a topic an offload takes. Pure: decides over what a broker listed, and does nothing.

As brokers do it (spec managed-ledger, section 8.1): walking from the newest closed ledger to the oldest, a ledger goes
when it is old enough, or when it and all that are newer hold more than what bookies are to keep. Without either rule
everything closed goes. Ids that are named go whatever their age.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from quire_bookie.model import LedgerId


@dataclass(frozen=True, slots=True)
class ListedLedger:
    """One ledger of a topic as its broker lists it. `closed_ms` 0: it is (or may be) still written."""

    ledger_id: LedgerId
    entries: int
    size_bytes: int
    closed_ms: int = 0
    offloaded: bool = False


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """None: no such rule. `ids`: only these."""

    age_s: float | None = None
    keep_bytes: int | None = None
    ledger_bytes_min: int = 0
    ids: frozenset[LedgerId] = field(default_factory=frozenset)


class Left(StrEnum):
    """Why a ledger is left where it is; a text for people."""

    OFFLOADED = "offloaded already"
    OPEN = "still being written"
    EMPTY = "has no entries"
    YOUNG = "not due yet"
    SMALL = "smaller than the least size"
    NOT_NAMED = "not named"


@dataclass(frozen=True, slots=True)
class Choice:
    """`chosen`, oldest first, and why each of the others was left."""

    chosen: tuple[ListedLedger, ...]
    left: tuple[tuple[LedgerId, Left], ...]


def choose(ledgers: Sequence[ListedLedger], policy: OffloadPolicy, now_ms: int) -> Choice:
    """Split a topic's ledgers, given oldest first. The newest one is never taken: its broker may write it."""
    chosen: list[ListedLedger] = []
    left: list[tuple[LedgerId, Left]] = []
    newer_bytes = 0
    for ledger in reversed(ledgers):
        newer_bytes += ledger.size_bytes
        reason = _reason_to_leave(ledger, policy, newer_bytes, now_ms, newest=ledger is ledgers[-1])
        if reason is None:
            chosen.append(ledger)
        else:
            left.append((ledger.ledger_id, reason))
    return Choice(tuple(reversed(chosen)), tuple(reversed(left)))


def _reason_to_leave(
    ledger: ListedLedger, policy: OffloadPolicy, newer_bytes: int, now_ms: int, *, newest: bool
) -> Left | None:
    """`newer_bytes`: of this ledger and all newer ones, offloaded or not, as brokers count them."""
    if policy.ids and ledger.ledger_id not in policy.ids:
        return Left.NOT_NAMED
    if ledger.offloaded:
        return Left.OFFLOADED
    if newest or not ledger.closed_ms:
        return Left.OPEN
    if not ledger.entries:
        return Left.EMPTY
    if policy.ids:
        return None
    if ledger.size_bytes < policy.ledger_bytes_min:
        return Left.SMALL
    if policy.age_s is None and policy.keep_bytes is None:
        return None
    old = policy.age_s is not None and now_ms - ledger.closed_ms >= policy.age_s * 1000
    beyond = policy.keep_bytes is not None and newer_bytes > policy.keep_bytes
    return None if old or beyond else Left.YOUNG
