"""Ends the review after a restore: ids, auto-recovery, and at last the hold. Refuses while a person's word is missing.

The order survives a crash at any step: ids first; then one transaction takes the note of the restore and the hold away
and switches auto-recovery on. Until then nothing is deleted and brokers wait.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from quire_bookie.backup.counters import (
    COUNTER_MARGIN,
    high_path,
    highest_high,
    leave_long_ids,
    raise_counter,
)
from quire_bookie.backup.format import BackupError
from quire_bookie.backup.holdings import Holdings
from quire_bookie.backup.review import Difference, Kind, Review
from quire_bookie.errors import BadVersionError
from quire_bookie.metadata import layout
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.recovery_controls import DISABLE
from quire_bookie.metadata.restoration import (
    GIVEN_UP,
    RESTORATION,
    Restoration,
    RestorationState,
    forget_returns,
    read_restoration,
)
from quire_bookie.metadata.store import Check, Delete, MetadataStore
from quire_bookie.metadata.versioned import Versioned
from quire_bookie.model import BookieId, LedgerId

PUTS_MAX: Final = 100_000
"""Short ids that are left out by puts; beyond that new ledgers keep long ids."""


@dataclass(frozen=True, slots=True)
class SettledIds:
    """What new ledgers are called from now on: above `above`, long or not. `puts`: what that took."""

    long: bool
    above: int
    puts: int


async def under_review(store: MetadataStore) -> Versioned[Restoration]:
    """The restore that waits for a person. BackupError when there is none, or it is still being written."""
    found = await read_restoration(store)
    if found is None:
        raise BackupError("the metadata was not restored, or that is settled: there is nothing to review")
    if found.value.state is RestorationState.WRITING:
        raise BackupError(
            f"the restore of backup {found.value.backup} did not end: run `quire metadata restore --yes` again"
        )
    return found


@dataclass(frozen=True, slots=True)
class Undecided:
    """What keeps the hold: `unknown`, a line each, has to be found out; about `ledgers` a person has to decide."""

    unknown: list[str]
    ledgers: list[Difference]

    @property
    def lines(self) -> list[str]:
        """All of it for a person."""
        return self.unknown + [
            f"ledger {one.ledger} is {one.kind.value}: adopt it, or drop it (`quire metadata orphans`)"
            for one in self.ledgers
        ]


def undecided(
    found: Review, holdings: Holdings, given_up: Collection[LedgerId], without: Collection[BookieId]
) -> Undecided:
    """What has to be decided before the hold may go. Pure."""
    unknown = [
        f"{why}; start it, or give --without {bookie} when it is lost for good"
        for bookie, why in holdings.silent.items()
        if bookie not in without
    ]
    unknown += [
        f"ledger {ledger} could not be judged: {why}; mend that, or drop it if what the metadata does not say may go"
        for ledger, why in found.unsure.items()
        if ledger not in given_up
    ]
    return Undecided(
        unknown, [one for one in found.differences if one.kind is not Kind.GONE and one.ledger not in given_up]
    )


async def settle_ids(
    store: MetadataStore, restoration: Restoration, holdings: Holdings, *, complete: bool, puts_max: int = PUTS_MAX
) -> SettledIds:
    """No new ledger gets an id that a bookie holds, or that the counter of the backup had given out.

    Long ids stay where bookies did not all answer (not `complete`), where a long one was given out meanwhile, and where
    the way by puts would be more than `puts_max`.
    """
    held_high = highest_high(held for ledgers in holdings.of.values() for held in ledgers)
    if held_high >= restoration.reserved_high and await store.get(high_path(held_high + 1)) is None:
        await raise_counter(store, high_path(held_high + 1), 0)
    target = max(restoration.short_ids_given, holdings.highest_short) + COUNTER_MARGIN
    node = await store.get(layout.ID_COUNTER)
    puts = max(0, target - (-1 if node is None else node.version))
    if not complete or held_high > 0 or puts > puts_max or target >= layout.SHORT_LEDGER_IDS_END:
        return SettledIds(True, max(held_high, restoration.reserved_high) << 32, 0)
    puts = await raise_counter(store, layout.ID_COUNTER, target)
    if await store.get(layout.LONG_ID_COUNTERS) is None:
        return SettledIds(False, target, puts)  # a release that broke off was here before
    if not await leave_long_ids(store, restoration.reserved_high):
        return SettledIds(True, restoration.reserved_high << 32, puts)
    return SettledIds(False, target, puts)


async def release(store: MetadataStore, restoration: Versioned[Restoration]) -> None:
    """The hold goes, auto-recovery goes on unless it was off in the backup, brokers may start. BackupError."""
    for name in await store.children(GIVEN_UP):
        await store.delete(f"{GIVEN_UP}/{name}")
    await forget_returns(store)  # what those bookies hold was not compared
    operations = [Delete(RESTORATION), Delete(HOLD_PATH)]
    if not restoration.value.recovery_was_off:
        operations.append(Delete(DISABLE))
    try:
        await store.transact([Check(RESTORATION, restoration.version)], operations)
    except BadVersionError as error:
        raise BackupError("the restore was settled by somebody else meanwhile") from error
