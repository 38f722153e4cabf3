"""A journal on a simulated disk, with its acknowledgements and the records of its replay."""

from collections.abc import Callable

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.disk import Disk
from quire_bookie.journal import EntryRecord, Journal, JournalRecord
from quire_bookie.journal.replay import ReplaySummary
from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.settings.journal import JournalSettings

FOLDER = "/data/journal"
SMALL = JournalSettings(file_bytes=16 * 4096, group_bytes_max=8192, spare_files_max=2, reserved_bytes=0)
LEDGER = LedgerId(9)


def run_of(first: int, *entries: bytes, ledger: int = LEDGER) -> Run:
    """Return a run with these entries."""
    return Run(LedgerId(ledger), EntryId(first), entries, EntryId(first - 1), sum(map(len, entries)))


class Answers:
    """Collects the results of `done` callbacks by tag, in order."""

    def __init__(self) -> None:
        self.order: list[object] = []
        self.errors: dict[object, BaseException] = {}
        self.acked: list[object] = []

    def of(self, tag: object) -> Callable[[BaseException | None], None]:
        """Return the `done` callback of one append."""

        def done(error: BaseException | None) -> None:
            self.order.append(tag)
            if error is None:
                self.acked.append(tag)
            else:
                self.errors[tag] = error

        return done


async def open_journal(
    disk: Disk, settings: JournalSettings = SMALL
) -> tuple[Journal, list[JournalRecord], ReplaySummary]:
    """Open and replay a journal. Returns it with the replayed records and the summary."""
    journal = await Journal.open(disk, FOLDER, settings, chance=SystemChance())
    records: list[JournalRecord] = []
    summary = await journal.replay(records.extend)
    return journal, records, summary


def entries_of(records: list[JournalRecord]) -> list[tuple[int, bytes]]:
    """Return (entry id, bytes) of all entries, in replay order."""
    return [
        (record.run.first + index, bytes(entry))
        for record in records
        if isinstance(record, EntryRecord)
        for index, entry in enumerate(record.run.entries)
    ]
