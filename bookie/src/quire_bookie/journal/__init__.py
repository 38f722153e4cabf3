"""The write-ahead log of a bookie."""

from quire_bookie.journal.format import JournalPosition
from quire_bookie.journal.journal import Journal
from quire_bookie.journal.journals import JournalPositions, Journals
from quire_bookie.journal.records import EntryRecord, ExplicitLacRecord, FenceRecord, JournalRecord, MasterKeyRecord
from quire_bookie.journal.replay import ReplaySummary
from quire_bookie.journal.writer import Done, JournalStats
from quire_bookie.settings.journal import JournalSettings

__all__ = [
    "Done",
    "EntryRecord",
    "ExplicitLacRecord",
    "FenceRecord",
    "Journal",
    "JournalPosition",
    "JournalPositions",
    "JournalRecord",
    "JournalSettings",
    "JournalStats",
    "Journals",
    "MasterKeyRecord",
    "ReplaySummary",
]
