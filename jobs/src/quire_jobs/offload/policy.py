"""Decides which ledgers of a topic an offload takes. Pure: decides on the broker's list and changes nothing.

The rule is that of brokers (spec managed-ledger, section 8.1): from the newest closed ledger to the oldest, a ledger is
offloaded if it is old enough, or if it and all newer ones hold more bytes than bookies should keep. Without either rule
all closed ledgers are offloaded. Ledgers that are named by id are offloaded at any age.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from quire_bookie.model import LedgerId


@dataclass(frozen=True, slots=True)
class ListedLedger:
    """One ledger of a topic as its broker lists it. `closed_ms` 0: it is, or may be, still written."""

    ledger_id: LedgerId
    entries: int
    size_bytes: int
    closed_ms: int = 0
    offloaded: bool = False


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """The rules. None: no such rule. `ids`: only these ledgers."""

    age_s: float | None = None
    keep_bytes: int | None = None
    ledger_bytes_min: int = 0
    ids: frozenset[LedgerId] = field(default_factory=frozenset)


class Left(StrEnum):
    """Why a ledger is skipped; values are user-visible."""

    OFFLOADED = "offloaded already"
    OPEN = "still being written"
    EMPTY = "has no entries"
    YOUNG = "not due yet"
    SMALL = "smaller than ledgerSizeMin"
    NOT_NAMED = "not named"


@dataclass(frozen=True, slots=True)
class Choice:
    """`chosen`: oldest first. `left`: the others, with the reason."""

    chosen: tuple[ListedLedger, ...]
    left: tuple[tuple[LedgerId, Left], ...]


def choose(ledgers: Sequence[ListedLedger], policy: OffloadPolicy, now_ms: int) -> Choice:
    """Divide a topic's ledgers, given oldest first. Never takes the newest one: its broker may be writing it."""
    chosen: list[ListedLedger] = []
    left: list[tuple[LedgerId, Left]] = []
    newer_bytes = 0
    for ledger in reversed(ledgers):
        newer_bytes += ledger.size_bytes
        reason = _reason_to_skip(ledger, policy, newer_bytes, now_ms, newest=ledger is ledgers[-1])
        if reason is None:
            chosen.append(ledger)
        else:
            left.append((ledger.ledger_id, reason))
    return Choice(tuple(reversed(chosen)), tuple(reversed(left)))


def _reason_to_skip(
    ledger: ListedLedger, policy: OffloadPolicy, newer_bytes: int, now_ms: int, *, newest: bool
) -> Left | None:
    """Return why a ledger is skipped, or None. `newer_bytes`: size of it and all newer ones, offloaded or not, as
    brokers do."""
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
