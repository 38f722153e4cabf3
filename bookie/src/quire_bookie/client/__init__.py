"""The quorum client: ledgers written, read, recovered and deleted."""

from quire_bookie.client.ledger_client import LedgerClient
from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.ledger_reader import LedgerReader
from quire_bookie.client.ledger_writer import LedgerWriter, WriterListener, WriterState
from quire_bookie.client.settings import ClientSettings

__all__ = [
    "ClientSettings",
    "LedgerClient",
    "LedgerEntry",
    "LedgerReader",
    "LedgerWriter",
    "WriterListener",
    "WriterState",
]
