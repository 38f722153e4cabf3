"""Begins the review after an older copy replaced the metadata without a restore. Raises the epoch.

One transaction, like the first one of a restore: the note that a review is open, the hold on garbage collection,
auto-recovery off, long ledger ids with a new high half, and an epoch above every epoch that a bookie remembers. From
then on bookies and clients trust this metadata, and the hold keeps the ledgers that the copy lacks until the review
ends. Never writes a ledger.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import field
from typing import Final

from quire_bookie.backup.counters import high_of, reserve_puts
from quire_bookie.backup.format import BackupError
from quire_bookie.backup.restore import HIGH_MARGIN
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BadVersionError, LedgerError, MetadataUnknownError
from quire_bookie.metadata import layout
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.epoch import EPOCH_PATH, epoch_put, next_epoch, read_epoch_node
from quire_bookie.metadata.initialise import read_instance_id
from quire_bookie.metadata.ledger_ids import read_counters
from quire_bookie.metadata.recovery_controls import DISABLE
from quire_bookie.metadata.restoration import (
    RESTORATION,
    Restoration,
    RestorationState,
    encode_restoration,
    read_restoration,
)
from quire_bookie.metadata.store import ABSENT, Check, MetadataStore, Operation, Put
from quire_bookie.model import BookieId, IdCounters, IdReport
from quire_bookie.recovery.access import ClusterAccess

ASK_TIMEOUT_S: Final = 10.0
_LONG_IDS: Final = 1 << 31


@dataclass(slots=True)
class Memories:
    """The counters of the metadata and those that each bookie remembers. `silent`: bookies without an answer, and
    why."""

    now: IdCounters
    reports: dict[BookieId, IdReport | None] = field(default_factory=dict)
    """None for a Java bookie, which remembers nothing."""
    silent: dict[BookieId, str] = field(default_factory=dict)

    def doubts(self) -> dict[BookieId, str]:
        """Return for each bookie that read newer metadata why this metadata is older. Empty when no bookie did."""
        found = {bookie: self.now.behind(report.seen) for bookie, report in self.reports.items() if report is not None}
        return {bookie: why for bookie, why in found.items() if why is not None}

    @property
    def epochs(self) -> list[int]:
        """All known epochs."""
        return [self.now.epoch, *(report.seen.epoch for report in self._known())]

    @property
    def short(self) -> int:
        """The highest short id that the counter issued or a bookie held; -1 without any."""
        return max(self.now.short, *(max(report.seen.short, report.short) for report in self._known()), -1)

    @property
    def high(self) -> int:
        """The highest high half of a long id; 0 without long ids."""
        longs = [self.now.long, *(id_ for report in self._known() for id_ in (report.seen.long, report.long))]
        return max((id_ >> 32 for id_ in longs if id_ >= _LONG_IDS), default=0)

    def _known(self) -> list[IdReport]:
        return [report for report in self.reports.values() if report is not None]


async def ask_memories(access: ClusterAccess, bookies: Iterable[BookieId]) -> Memories:
    """Ask `bookies`, then read the counters. Changes nothing. MetadataError."""

    async def ask(bookie: BookieId) -> IdReport | LedgerError | None:
        try:
            return await access.id_report_of(bookie, ASK_TIMEOUT_S)
        except LedgerError as error:
            return error

    asked = sorted(bookies)
    answers = dict(zip(asked, await asyncio.gather(*map(ask, asked)), strict=True))
    found = Memories(await read_counters(access.metadata))
    for bookie, answer in answers.items():
        if isinstance(answer, LedgerError):
            found.silent[bookie] = str(answer)
        else:
            found.reports[bookie] = answer
    return found


async def refuse_second_review(store: MetadataStore) -> None:
    """Raise BackupError while a restore is being written or reviewed, since it raised the epoch already."""
    found = await read_restoration(store)
    if found is not None:
        raise BackupError(
            f"{found.value.backup} is under review, which raised the epoch already: continue with `quire metadata "
            "orphans list` and `quire metadata release-hold`"
        )


async def begin_review(store: MetadataStore, memories: Memories, *, name: str, now_ms: int) -> int:
    """Raise the epoch and open the review; return the epoch. After BackupError or MetadataError nothing was changed.

    MetadataUnknownError: it may have been done; check again.
    """
    await refuse_second_review(store)
    cluster = await read_instance_id(store)
    if cluster is None:
        raise BackupError("the metadata store names no cluster: restore a backup (`quire metadata restore`)")
    epoch = await read_epoch_node(store)
    hold, disabled = await store.get(HOLD_PATH), await store.get(DISABLE)
    parent = await store.get(layout.LONG_ID_COUNTERS)
    names = [] if parent is None else await store.children(layout.LONG_ID_COUNTERS)
    stored = max(
        (high for one in names if (high := high_of(f"{layout.LONG_ID_COUNTERS}/{one}")) is not None), default=0
    )
    raised = next_epoch(epoch.value, *memories.epochs, now_ms=now_ms)
    restoration = Restoration(
        backup=name,
        cluster=cluster,
        state=RestorationState.REVIEW,
        since_ms=now_ms,
        reserved_high=max(memories.high, stored) + HIGH_MARGIN,
        short_ids_given=max(memories.short, 0),
        recovery_was_off=disabled is not None,
    )
    reason = f"an older copy of the metadata was accepted ({name}); `quire metadata release-hold` ends this"
    long_parent, long_counter = reserve_puts(restoration.reserved_high)
    operations: list[Operation] = [
        Put(RESTORATION, encode_restoration(restoration)),
        Put(HOLD_PATH, reason.encode()),
        *([Put(DISABLE, b"")] if disabled is None else []),
        *([long_parent] if parent is None else []),
        long_counter,
        epoch_put(raised),
    ]
    checks = [
        Check(RESTORATION, ABSENT),
        Check(HOLD_PATH, ABSENT if hold is None else hold.version),
        Check(DISABLE, ABSENT if disabled is None else disabled.version),
        Check(layout.LONG_ID_COUNTERS, ABSENT if parent is None else parent.version),
        Check(long_counter.key, ABSENT),
        Check(EPOCH_PATH, epoch.version),
    ]
    try:
        await store.transact(checks, operations)
    except BadVersionError as error:
        raise BackupError("another process wrote to the metadata store meanwhile; run this again") from error
    except MetadataUnknownError:
        now = await read_restoration(store)
        if now is None or now.value != restoration:
            raise
    return raised
