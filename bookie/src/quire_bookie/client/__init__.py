"""The quorum client: writes, reads, recovers and deletes ledgers."""

from quire_bookie.client.ledger_client import LedgerClient
from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.reading.ledger_reader import LedgerReader
from quire_bookie.client.writing.ledger_writer import LedgerWriter, WriterListener, WriterState
from quire_bookie.settings.client import ClientSettings

__all__ = [
    "ClientSettings",
    "LedgerClient",
    "LedgerEntry",
    "LedgerReader",
    "LedgerWriter",
    "WriterListener",
    "WriterState",
]
