"""Stores the nodes in SQLite, and their changes in the change log. Used by one thread only; blocks only on the disk.

Format 2: `metadata.db`, table `nodes(key, value, version, ephemeral)`; keys are UTF-8 bytes so that they sort as in
etcd. Table `history` has one row: the id of the store, and number, chain and digest of the last commit
(`change_format`). WAL with `synchronous=FULL`: a commit is durable when it returns. `user_version` is the version of
this format. Format 1 had no history and no change log.

A group is committed to SQLite, then appended to the change log, then answered. So the log never has a commit that the
database did not have: if it does, the database has lost answered commits.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from quire_bookie.env.file_modes import FILE_MODE
from quire_bookie.errors import BadVersionError, NodeMissingError
from quire_bookie.limits import METADATA_LOG_STEP_NODES
from quire_bookie.metadata.contract import after_child, prefix_end, sequence_parent
from quire_bookie.metadata.local.agreement import DatabaseSeen
from quire_bookie.metadata.local.change_format import (
    Position,
    Value,
    add_to_digest,
    checksum,
    digest_bytes,
    encode_commit,
    encode_frame,
    hash_of,
)
from quire_bookie.metadata.local.change_log import ChangeLog, LogWriter, write_log
from quire_bookie.metadata.local.inspection import FILE_NAME, Rows, history_checksum, read_history
from quire_bookie.metadata.store import ABSENT, Check, Event, EventKind, Get, Node, Operation, Put, Read

_log = logging.getLogger("quire.metadata.local")
Row = tuple[bytes, bytes, int, int]


class Database:
    """Reads return committed data; writes happen between `begin` and `commit`."""

    def __init__(self, folder: Path, log: ChangeLog, seen: DatabaseSeen) -> None:
        """Use `opening.open_database`: `log` and `seen` were compared with each other and with the file."""
        self._folder = folder
        self._path = folder / FILE_NAME
        self._connection = connect(self._path)
        self._log = log
        self._seen = seen
        self._logged = seen.last.sequence
        self._digest = seen.last.digest
        self._changes: dict[bytes, Value | None] = {}
        self._frame: bytes | None = None
        self._staged = seen
        self._outcome_unknown = False
        self._rewrite: LogRewrite | None = None
        self.events: list[Event] = []

    def begin(self) -> None:
        """Start a group of writes. sqlite3.Error, OSError: no writes are possible now."""
        assert not self._changes and self._frame is None, "the former group has ended"
        self.events.clear()
        if self._outcome_unknown:
            # A failed commit may have succeeded: read the last commit from the database.
            self._seen = read_history(self._connection) or self._seen
            self._digest = self._seen.last.digest
            self._outcome_unknown = False
        if not self._log.usable or self._logged != self._seen.last.sequence:
            self._write_log_again()
        self._connection.execute("BEGIN IMMEDIATE")

    def prepare(self) -> None:
        """Do every step of the commit whose failure has a known outcome. sqlite3.Error, OSError: roll back."""
        self._frame = None
        if not self._changes:
            return
        last = self._seen.last
        assert self._log.usable and self._logged == last.sequence, "the change log has every earlier commit"
        body = encode_commit(last.sequence + 1, self._digest, self._changes)
        now = Position(last.sequence + 1, checksum(last.chain, body), self._digest)
        frame = encode_frame(body, now.chain)
        self._log.reserve(len(frame))
        self._staged = DatabaseSeen(self._seen.store, now, last.chain)
        write_history(self._connection, self._staged)
        self._frame = frame

    def commit(self) -> list[Event]:
        """Make the group durable in the database; return its changes in order. Call `log` next."""
        self._connection.execute("COMMIT")
        if self._frame is not None:
            self._seen = self._staged
        self._changes.clear()
        return list(self.events)

    def log(self) -> None:
        """Append the group to the change log. OSError: the outcome is unknown; do not acknowledge the group."""
        frame, self._frame = self._frame, None
        if frame is None:
            return
        assert self._seen.last.sequence == self._logged + 1, "commits are logged in order"
        self._log.append(frame)
        self._logged = self._seen.last.sequence
        if self._rewrite is not None:
            self._rewrite.later.append(frame)

    def rollback(self) -> None:
        """Discard the group."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self.events.clear()
        self._changes.clear()
        self._frame = None
        self._outcome_unknown = True

    def tidy(self) -> bool:
        """Do one step of rewriting a long change log; return whether more steps are due."""
        if self._rewrite is None and not (self._log.usable and self._log.is_long):
            return False
        try:
            if self._rewrite is None:
                self._rewrite = LogRewrite(self._folder, self.snapshot())
            if not self._rewrite.step():
                return True
            self._log.give_up()  # from here on the new file may have taken the name
            rewritten = self._rewrite.finish()
        except (OSError, sqlite3.Error) as error:
            _log.warning("could not rewrite the change log of the metadata, which keeps growing: %s", error)
            self._abandon_rewrite()
            self._log.postpone()
            return False
        self._rewrite = None
        self._log.close()
        self._log = rewritten
        return False

    def get(self, key: str) -> Node | None:
        """Return the node, or None."""
        query = "SELECT key, value, version, ephemeral FROM nodes WHERE key = ?"
        row = self._connection.execute(query, (key.encode(),)).fetchone()
        return None if row is None else _node(row)

    def read(self, reads: Sequence[Read]) -> list[list[Node]]:
        """Return the nodes of each read. Nothing is written in between: this thread is the only writer."""
        return [self._read(read) for read in reads]

    def _read(self, read: Read) -> list[Node]:
        if isinstance(read, Get):
            node = self.get(read.key)
            return [] if node is None else [node]
        query = "SELECT key, value, version, ephemeral FROM nodes WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        start = read.prefix.encode()
        return [_node(row) for row in self._connection.execute(query, (start, prefix_end(start), read.nodes_max))]

    def children(self, key: str) -> list[str]:
        """Return the names of direct children; the cost is per child, not per node below it."""
        base = key.rstrip("/").encode() + b"/"
        start, end = base, prefix_end(base)
        names: set[bytes] = set()
        query = "SELECT key FROM nodes WHERE key >= ? AND key < ? ORDER BY key LIMIT 1"
        while (row := self._connection.execute(query, (start, end)).fetchone()) is not None:
            names.add(row[0][len(base) :].partition(b"/")[0])
            start = after_child(base, row[0])
        return sorted(name.decode() for name in names)

    def put(self, key: str, value: bytes, expected: int | None, ephemeral: bool) -> int:
        """Write the node; return its new version. BadVersionError."""
        old = self.get(key)
        current = ABSENT if old is None else old.version
        if expected is not None and current != expected:
            raise BadVersionError(_mismatch(key, current, expected))
        version = current + 1
        self._connection.execute(
            "INSERT INTO nodes (key, value, version, ephemeral) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE "
            "SET value = excluded.value, version = excluded.version, ephemeral = excluded.ephemeral",
            (key.encode(), value, version, ephemeral),
        )
        self._note(key, old, None if ephemeral else (version, value))
        self.events.append(Event(EventKind.CREATED if old is None else EventKind.MODIFIED, key))
        return version

    def put_sequential(self, prefix: str, value: bytes, ephemeral: bool) -> str:
        """Increment the counter of the parent, write the child, return its key."""
        number = self.put(sequence_parent(prefix), b"", None, False)
        key = f"{prefix}{number}"
        self.put(key, value, None, ephemeral)
        return key

    def delete(self, key: str, expected: int | None) -> None:
        """Remove the node. NodeMissingError, BadVersionError."""
        current = self._version(key)
        if expected is not None and current != expected:
            raise BadVersionError(_mismatch(key, current, expected))
        if current == ABSENT:
            raise NodeMissingError(f"{key} does not exist")
        self._remove(key)

    def transact(
        self, checks: Sequence[Check], operations: Sequence[Operation], reads: Sequence[Read]
    ) -> list[list[Node]]:
        """Verify all checks before the first write, so that a failed one leaves nothing to undo. Read after them."""
        for check in checks:
            current = self._version(check.key)
            if current != check.version:
                raise BadVersionError(_mismatch(check.key, current, check.version))
        for operation in operations:
            if isinstance(operation, Put):
                self.put(operation.key, operation.value, None, operation.ephemeral)
            elif self._version(operation.key) != ABSENT:
                self._remove(operation.key)
        return self.read(reads)

    def delete_ephemeral(self) -> None:
        """Remove all nodes of the session."""
        rows = self._connection.execute("SELECT key FROM nodes WHERE ephemeral ORDER BY key").fetchall()
        for (key,) in rows:
            self._remove(key.decode())

    def count(self, start: bytes, end: bytes) -> int:
        """Count the nodes with start <= key < end."""
        query = "SELECT COUNT(*) FROM nodes WHERE key >= ? AND key < ?"
        return int(self._connection.execute(query, (start, end)).fetchone()[0])

    def snapshot(self) -> "Snapshot":
        """Return a snapshot: the present nodes, for as long as it is open."""
        return Snapshot(self._path)

    def close(self) -> None:
        """Close the files. The last connection moves the write-ahead log into the database."""
        self._abandon_rewrite()
        self._connection.close()
        self._log.close()

    def _version(self, key: str) -> int:
        row = self._connection.execute("SELECT version FROM nodes WHERE key = ?", (key.encode(),)).fetchone()
        return ABSENT if row is None else int(row[0])

    def _remove(self, key: str) -> None:
        old = self.get(key)
        self._connection.execute("DELETE FROM nodes WHERE key = ?", (key.encode(),))
        self._note(key, old, None)
        self.events.append(Event(EventKind.DELETED, key))

    def _note(self, key: str, old: Node | None, now: Value | None) -> None:
        """Record a change of a persistent node; ephemeral ones end with the process and are not logged."""
        was_kept = old is not None and not old.ephemeral
        if not was_kept and now is None:
            return
        stored = key.encode()
        hashes = [] if now is None else [hash_of(stored, *now)]
        if old is not None and was_kept:
            hashes.append(-hash_of(stored, old.version, old.value))
        self._digest = add_to_digest(self._digest, *hashes)
        self._changes[stored] = now

    def _write_log_again(self) -> None:
        """Replace a log that failed or lacks a commit. OSError, sqlite3.Error: the next group must do it."""
        self._abandon_rewrite()
        rewritten = write_log(self._folder, self._seen.store, Rows(self._connection), self._seen.last)
        self._log.close()
        self._log = rewritten
        self._logged = self._seen.last.sequence

    def _abandon_rewrite(self) -> None:
        if self._rewrite is not None:
            self._rewrite.abandon()
            self._rewrite = None


class LogRewrite:
    """Copies the nodes of one snapshot into a new change log, in steps."""

    def __init__(self, folder: Path, snapshot: "Snapshot") -> None:
        self._snapshot = snapshot
        self._next = b""
        self.later: list[bytes] = []
        """Commits since the snapshot."""
        seen = snapshot.history()
        if seen is None:
            snapshot.close()
            raise sqlite3.DatabaseError("the row of the last commit is damaged")
        self._at = seen.last
        try:
            self._writer = LogWriter(folder, seen.store)
        except OSError:
            snapshot.close()
            raise

    def step(self) -> bool:
        """Copy the next nodes; return whether these were the last. OSError, sqlite3.Error."""
        rows = self._snapshot.persistent(self._next, METADATA_LOG_STEP_NODES)
        self._writer.add(rows)
        if rows:
            self._next = rows[-1][0] + b"\0"
        return len(rows) < METADATA_LOG_STEP_NODES

    def finish(self) -> ChangeLog:
        """Add the commits since the snapshot, and replace the old file. OSError."""
        log = self._writer.finish(self._at, self.later)
        self._snapshot.close()
        return log

    def abandon(self) -> None:
        """Discard the rewrite."""
        self._writer.abandon()
        self._snapshot.close()


class Snapshot:
    """A read transaction on a separate connection: WAL keeps its revision while it is open."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        # The first read after BEGIN fixes the revision of the snapshot.
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT 1 FROM nodes LIMIT 1").fetchone()

    def page(self, start: bytes, end: bytes, limit: int, keys_only: bool) -> list[Node]:
        """Return up to `limit` nodes with start <= key < end, by key."""
        value = "x''" if keys_only else "value"
        query = f"SELECT key, {value}, version, ephemeral FROM nodes WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        return [_node(row) for row in self._connection.execute(query, (start, end, limit))]

    def persistent(self, start: bytes, limit: int) -> list[tuple[bytes, int, bytes]]:
        """Return up to `limit` persistent nodes from `start` on, by key: (key, version, value)."""
        query = "SELECT key, version, value FROM nodes WHERE key >= ? AND ephemeral = 0 ORDER BY key LIMIT ?"
        return self._connection.execute(query, (start, limit)).fetchall()

    def history(self) -> DatabaseSeen | None:
        """Return the last commit of the snapshot."""
        return read_history(self._connection)

    def close(self) -> None:
        """End the transaction."""
        self._connection.close()


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection for reads and writes; a new file is readable only by our user. sqlite3.Error."""
    with contextlib.suppress(OSError):  # it exists, or SQLite reports why it cannot be created
        # SQLite would create it readable for all users. `-wal` and `-shm` get the mode of the database.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    # isolation_level None: this module begins and ends transactions itself.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=True, timeout=5.0)
    connection.execute("PRAGMA synchronous=FULL")
    # For macOS, see `env.durable`; elsewhere without effect.
    connection.execute("PRAGMA fullfsync=ON")
    connection.execute("PRAGMA checkpoint_fullfsync=ON")
    return connection


def write_history(connection: sqlite3.Connection, seen: DatabaseSeen) -> None:
    """Write the row of the last commit, in the open transaction."""
    last = seen.last
    row = (seen.store, last.sequence, last.chain, seen.before, digest_bytes(last.digest))
    connection.execute(
        "INSERT OR REPLACE INTO history (id, store, sequence, chain, before, digest, checksum) "
        "VALUES (0, ?, ?, ?, ?, ?, ?)",
        (*row, history_checksum(*row)),
    )


def _node(row: Row) -> Node:
    key, value, version, ephemeral = row
    return Node(key.decode(), value, version, ephemeral=bool(ephemeral), owned=bool(ephemeral))


def _mismatch(key: str, current: int, expected: int) -> str:
    have = "does not exist" if current == ABSENT else f"has version {current}"
    want = "absent" if expected == ABSENT else f"version {expected}"
    return f"{key} {have}, expected {want}"
