"""Ends the review after a restore: settles the ids, then releases auto-recovery and the hold.

Refuses while an operator has to decide about a ledger. A crash at any step is safe: the ids come first, then one
transaction deletes the note of the restore and the hold and switches auto-recovery on. Until then nothing is deleted
and brokers wait.
"""

from collections.abc import Collection
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
from quire_bookie.dataclass import dataclass
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
from quire_bookie.metadata.store import Check, Delete, MetadataStore, Versioned
from quire_bookie.model import BookieId, LedgerId

PUTS_MAX: Final = 100_000
"""Short ids that are skipped by writing the counter. When more are needed, new ledgers keep long ids."""


@dataclass(frozen=True, slots=True)
class SettledIds:
    """The ids of new ledgers from now on: above `above`, long or short. `puts`: the number of writes that it took."""

    long: bool
    above: int
    puts: int


async def under_review(store: MetadataStore) -> Versioned[Restoration]:
    """Return the restore that waits for an operator. BackupError when there is none, or it is still being written."""
    found = await read_restoration(store)
    if found is None:
        raise BackupError("no restore is under review: none was made, or its review has ended")
    if found.value.state is RestorationState.WRITING:
        raise BackupError(
            f"the restore of backup {found.value.backup} is incomplete: run `quire metadata restore --yes` again"
        )
    return found


@dataclass(frozen=True, slots=True)
class Undecided:
    """What keeps the hold: `unknown`, one line each, has to be found out; an operator has to decide about `ledgers`."""

    unknown: list[str]
    ledgers: list[Difference]

    @property
    def lines(self) -> list[str]:
        """All of it as lines of text for the operator."""
        return self.unknown + [
            f"ledger {one.ledger} is {one.kind.value}: adopt it, or drop it (`quire metadata orphans`)"
            for one in self.ledgers
        ]


def unanswered(holdings: Holdings, without: Collection[BookieId]) -> list[str]:
    """Return a line for each bookie that did not answer and is not declared lost. Pure."""
    return [
        f"{why}; start it, or give --without {bookie} when it is permanently lost"
        for bookie, why in holdings.silent.items()
        if bookie not in without
    ]


def undecided(
    found: Review, holdings: Holdings, given_up: Collection[LedgerId], without: Collection[BookieId]
) -> Undecided:
    """Return what has to be decided before the hold may be released. Pure."""
    unknown = unanswered(holdings, without)
    unknown += [
        f"ledger {ledger} could not be compared: {why}; fix that, or drop it if entries unknown to the metadata may be "
        "lost"
        for ledger, why in found.unsure.items()
        if ledger not in given_up
    ]
    return Undecided(
        unknown, [one for one in found.differences if one.kind is not Kind.GONE and one.ledger not in given_up]
    )


async def settle_ids(
    store: MetadataStore, restoration: Restoration, holdings: Holdings, *, complete: bool, puts_max: int = PUTS_MAX
) -> SettledIds:
    """Ensure that no new ledger gets an id that a bookie holds or that the counter of the backup had issued.

    Long ids stay when not all bookies answered (not `complete`), when a long id was issued meanwhile, or when raising
    the short counter would take more than `puts_max` writes.
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
        return SettledIds(False, target, puts)  # an earlier, interrupted release did the rest
    if not await leave_long_ids(store, restoration.reserved_high):
        return SettledIds(True, restoration.reserved_high << 32, puts)
    return SettledIds(False, target, puts)


async def release(store: MetadataStore, restoration: Versioned[Restoration]) -> None:
    """Delete the hold and let brokers start; auto-recovery resumes unless it was off in the backup. BackupError."""
    for name in await store.children(GIVEN_UP):
        await store.delete(f"{GIVEN_UP}/{name}")
    await forget_returns(store)  # the entries of those bookies were not compared
    operations = [Delete(RESTORATION), Delete(HOLD_PATH)]
    if not restoration.value.recovery_was_off:
        operations.append(Delete(DISABLE))
    try:
        await store.transact([Check(RESTORATION, restoration.version)], operations)
    except BadVersionError as error:
        raise BackupError("another process ended the review meanwhile") from error
