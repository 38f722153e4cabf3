"""The nodes in SQLite. Used by one thread only; never waits for anything but the disk.

Format: `metadata.db`, table `nodes(key, value, version, ephemeral)`; keys are UTF-8 bytes so that they sort as in etcd.
WAL with `synchronous=FULL`: a commit is durable when it returns. `user_version` is the version of this format.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from quire_bookie.errors import BadVersionError, NodeMissingError, StartupError
from quire_bookie.metadata.contract import after_child, prefix_end, sequence_parent
from quire_bookie.metadata.store import ABSENT, Check, Event, EventKind, Node, Operation, Put

FILE_NAME = "metadata.db"
_FORMAT_VERSION = 1
_APPLICATION_ID = 0x51_75_69_72  # "Quir"

Row = tuple[bytes, bytes, int, int]


class Database:
    """Reads see what was committed before; writes are made between `begin` and `commit`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._connection = _connect(self._path)
        self.events: list[Event] = []
        self._prepare()

    def _prepare(self) -> None:
        run = self._connection.execute
        application = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        tables = run("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and application != _APPLICATION_ID:
            raise StartupError(f"{self._path} is a database of another program; choose another folder")
        if tables and version != _FORMAT_VERSION:
            raise StartupError(f"{self._path} has format {version}; this version of Quire reads {_FORMAT_VERSION}")
        run("PRAGMA journal_mode=WAL")
        run("PRAGMA synchronous=FULL")
        if not tables:
            run("BEGIN IMMEDIATE")
            run(f"PRAGMA application_id={_APPLICATION_ID}")
            run(f"PRAGMA user_version={_FORMAT_VERSION}")
            run(
                "CREATE TABLE nodes (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, "
                "ephemeral INTEGER NOT NULL) WITHOUT ROWID"
            )
            run("CREATE INDEX ephemeral_nodes ON nodes (ephemeral) WHERE ephemeral")
            run("COMMIT")

    def begin(self) -> None:
        """Start a group of writes."""
        self.events.clear()
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> list[Event]:
        """Make the group durable; returns what it changed, in order."""
        self._connection.execute("COMMIT")
        return list(self.events)

    def rollback(self) -> None:
        """Forget the group."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self.events.clear()

    def get(self, key: str) -> Node | None:
        """The node or None."""
        query = "SELECT key, value, version, ephemeral FROM nodes WHERE key = ?"
        row = self._connection.execute(query, (key.encode(),)).fetchone()
        return None if row is None else _node(row)

    def children(self, key: str) -> list[str]:
        """Names of direct children; work is per child, not per node below."""
        base = key.rstrip("/").encode() + b"/"
        start, end = base, prefix_end(base)
        names: set[bytes] = set()
        query = "SELECT key FROM nodes WHERE key >= ? AND key < ? ORDER BY key LIMIT 1"
        while (row := self._connection.execute(query, (start, end)).fetchone()) is not None:
            names.add(row[0][len(base) :].partition(b"/")[0])
            start = after_child(base, row[0])
        return sorted(name.decode() for name in names)

    def put(self, key: str, value: bytes, expected: int | None, ephemeral: bool) -> int:
        """Write; returns the new version. BadVersionError."""
        current = self._version(key)
        if expected is not None and current != expected:
            raise BadVersionError(_mismatch(key, current, expected))
        version = current + 1
        self._connection.execute(
            "INSERT INTO nodes (key, value, version, ephemeral) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE "
            "SET value = excluded.value, version = excluded.version, ephemeral = excluded.ephemeral",
            (key.encode(), value, version, ephemeral),
        )
        self.events.append(Event(EventKind.CREATED if current == ABSENT else EventKind.MODIFIED, key))
        return version

    def put_sequential(self, prefix: str, value: bytes, ephemeral: bool) -> str:
        """Count on the parent, write the child; returns its key."""
        number = self.put(sequence_parent(prefix), b"", None, False)
        key = f"{prefix}{number}"
        self.put(key, value, None, ephemeral)
        return key

    def delete(self, key: str, expected: int | None) -> None:
        """Remove. NodeMissingError, BadVersionError."""
        current = self._version(key)
        if expected is not None and current != expected:
            raise BadVersionError(_mismatch(key, current, expected))
        if current == ABSENT:
            raise NodeMissingError(f"{key} does not exist")
        self._remove(key)

    def transact(self, checks: Sequence[Check], operations: Sequence[Operation]) -> None:
        """All checks before the first write, so that a failed one leaves nothing to undo."""
        for check in checks:
            current = self._version(check.key)
            if current != check.version:
                raise BadVersionError(_mismatch(check.key, current, check.version))
        for operation in operations:
            if isinstance(operation, Put):
                self.put(operation.key, operation.value, None, operation.ephemeral)
            elif self._version(operation.key) != ABSENT:
                self._remove(operation.key)

    def delete_ephemeral(self) -> None:
        """Remove all nodes of the session."""
        rows = self._connection.execute("SELECT key FROM nodes WHERE ephemeral ORDER BY key").fetchall()
        for (key,) in rows:
            self._remove(key.decode())

    def count(self, start: bytes, end: bytes) -> int:
        """Nodes with start <= key < end."""
        query = "SELECT COUNT(*) FROM nodes WHERE key >= ? AND key < ?"
        return int(self._connection.execute(query, (start, end)).fetchone()[0])

    def snapshot(self) -> "Snapshot":
        """The nodes as they are now, for as long as the snapshot is open."""
        return Snapshot(self._path)

    def close(self) -> None:
        """Release the file."""
        self._connection.close()

    def _version(self, key: str) -> int:
        row = self._connection.execute("SELECT version FROM nodes WHERE key = ?", (key.encode(),)).fetchone()
        return ABSENT if row is None else int(row[0])

    def _remove(self, key: str) -> None:
        self._connection.execute("DELETE FROM nodes WHERE key = ?", (key.encode(),))
        self.events.append(Event(EventKind.DELETED, key))


class Snapshot:
    """A read transaction of its own connection: WAL keeps its revision while it is open."""

    def __init__(self, path: Path) -> None:
        self._connection = _connect(path)
        # The snapshot is taken by the first read after BEGIN.
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT 1 FROM nodes LIMIT 1").fetchone()

    def page(self, start: bytes, end: bytes, limit: int, keys_only: bool) -> list[Node]:
        """Up to `limit` nodes with start <= key < end, by key."""
        value = "x''" if keys_only else "value"
        query = f"SELECT key, {value}, version, ephemeral FROM nodes WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        return [_node(row) for row in self._connection.execute(query, (start, end, limit))]

    def close(self) -> None:
        """Give the revision up."""
        self._connection.close()


def open_database(folder: Path) -> Database:
    """Open or create. StartupError, one line, for whatever is wrong with the file."""
    try:
        return Database(folder)
    except sqlite3.Error as error:
        raise StartupError(f"{folder / FILE_NAME} cannot be used as the metadata store: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    # isolation_level None: transactions begin and end where this module says so.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=True, timeout=5.0)


def _node(row: Row) -> Node:
    key, value, version, ephemeral = row
    return Node(key.decode(), value, version, ephemeral=bool(ephemeral), owned=bool(ephemeral))


def _mismatch(key: str, current: int, expected: int) -> str:
    have = "does not exist" if current == ABSENT else f"has version {current}"
    want = "absent" if expected == ABSENT else f"version {expected}"
    return f"{key} {have}, expected {want}"
