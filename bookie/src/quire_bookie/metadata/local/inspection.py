"""Inspects `metadata.db` before it is used: format, structure, and whether its nodes match its last commit.

Opens the file read-only, so that a damaged write-ahead log stays unchanged for `quire metadata repair`: the last writer
that closes a database moves the readable part of that log into it and deletes the log.
"""

import sqlite3
import struct
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from quire_bookie.dataclass import dataclass
from quire_bookie.metadata.local.agreement import DatabaseSeen
from quire_bookie.metadata.local.change_format import Position, checksum, digest_from, digest_of

FILE_NAME: Final = "metadata.db"
WAL_NAME: Final = "metadata.db-wal"
SHM_NAME: Final = "metadata.db-shm"
FORMAT_VERSION: Final = 2
FORMAT_WITHOUT_LOG: Final = 1
APPLICATION_ID: Final = 0x51_75_69_72  # "Quir"

HistoryRow = tuple[bytes, int, bytes, bytes, bytes, bytes]


@dataclass(slots=True)
class Inspection:
    """The findings. `format`: None if there are no tables, or they cannot be read."""

    exists: bool = True
    format: int | None = None
    seen: DatabaseSeen | None = None
    """The last commit according to the database, or None."""
    digest: int = 0
    """Digest of the nodes in the database."""
    problem: str = ""
    """Why the content cannot be trusted; empty if it can."""
    foreign: str = ""
    """Why the file is not ours to read. With a change log of ours beside it, that is damage."""
    nodes: int = 0


@dataclass(slots=True)
class Rows:
    """Iterates over persistent rows and counts them."""

    connection: sqlite3.Connection
    count: int = field(default=0)

    def __iter__(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield (key, version, value) of persistent nodes by key."""
        query = "SELECT key, version, value FROM nodes NOT INDEXED WHERE ephemeral = 0 ORDER BY key"
        for row in self.connection.execute(query):
            self.count += 1
            yield row


def inspect_database(folder: Path) -> Inspection:
    """Read the whole database. Damage is a finding, never an error."""
    path = folder / FILE_NAME
    if not path.exists():
        return Inspection(exists=False, problem="it is missing" if (folder / WAL_NAME).exists() else "")
    try:
        connection = connect_read_only(path)
    except sqlite3.Error as error:
        return Inspection(problem=str(error))
    try:
        return _inspect(connection, path)
    except (sqlite3.Error, TypeError, ValueError, struct.error) as error:  # damaged rows have columns of any type
        return Inspection(problem=str(error))
    finally:
        connection.close()


def connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that changes neither the database nor its write-ahead log. sqlite3.Error."""
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, isolation_level=None)


def _inspect(connection: sqlite3.Connection, path: Path) -> Inspection:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        return Inspection()
    if application != APPLICATION_ID:
        return _foreign(f"{path} is a database of another program; choose another folder")
    if version not in (FORMAT_VERSION, FORMAT_WITHOUT_LOG):
        return _foreign(f"{path} has format {version}; this version of Quire reads {FORMAT_VERSION}")
    inspection = Inspection(format=version)
    if version == FORMAT_VERSION:
        inspection.seen = read_history(connection)
    structure = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    rows = Rows(connection)
    inspection.digest = digest_of(rows)
    inspection.nodes = rows.count
    inspection.problem = "" if structure == "ok" else str(structure).partition("\n")[2] or str(structure)
    if version == FORMAT_VERSION and inspection.seen is None:
        inspection.problem = inspection.problem or "its row of the last commit is damaged"
    elif inspection.seen is not None and inspection.digest != inspection.seen.last.digest:
        inspection.problem = inspection.problem or (
            f"its nodes do not match commit {inspection.seen.last.sequence}: a page is damaged"
        )
    return inspection


def _foreign(why: str) -> Inspection:
    return Inspection(problem=why, foreign=why)


def read_history(connection: sqlite3.Connection) -> DatabaseSeen | None:
    """Return the row of the last commit; None if it is damaged or missing. sqlite3.Error."""
    row: HistoryRow | None = connection.execute(
        "SELECT store, sequence, chain, before, digest, checksum FROM history WHERE id = 0"
    ).fetchone()
    if row is None or [type(each) for each in row] != [bytes, int, bytes, bytes, bytes, bytes]:
        return None
    if history_checksum(*row[:5]) != row[5]:
        return None
    store, sequence, chain, before, digest, _ = row
    return DatabaseSeen(store, Position(sequence, chain, digest_from(digest)), before)


def history_checksum(store: bytes, sequence: int, chain: bytes, before: bytes, digest: bytes) -> bytes:
    """Return the checksum of that row."""
    return checksum(store + chain + before + digest, str(sequence).encode())
