"""`LocalMetadataStore`: the metadata store port on SQLite. Used by one process, whose lifetime is the session.

The folder is locked. Ephemeral nodes of the previous run are deleted on opening: that process is dead, or it would hold
the lock. Versions and sequence numbers are the same as in etcd.
"""

import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from quire_bookie.env.durable import sync_path
from quire_bookie.env.file_modes import FILE_MODE, make_private_dirs
from quire_bookie.errors import StartupError
from quire_bookie.metadata.contract import check_key, check_transaction, check_value, prefix_end, sequence_parent
from quire_bookie.metadata.event_queue import EventQueue
from quire_bookie.metadata.local.worker import DatabaseThread
from quire_bookie.metadata.store import Check, Event, MetadataStats, Node, Operation, Read, SessionState

_LOCK_NAME = "LOCK"


class LocalMetadataStore:
    """Implements `MetadataStore` on SQLite."""

    def __init__(self, folder: Path, lock: int) -> None:
        """Use `open`."""
        self._folder = folder
        self._lock = lock
        self._watches: list[EventQueue] = []
        self._listeners: list[Callable[[SessionState], None]] = []
        self.stats = MetadataStats()
        self._thread = DatabaseThread(self._on_events, self.stats)
        self._closed = False

    @classmethod
    async def open(cls, folder: str | Path) -> "LocalMetadataStore":
        """Open or create the store in `folder`. StartupError: in use, not writable, or not a store of Quire."""
        path = Path(folder)
        async with contextlib.AsyncExitStack() as undo:
            store = cls(path, lock_folder(path))
            undo.callback(os.close, store._lock)
            undo.push_async_callback(store._thread.stop)
            await store._thread.start(path)
            await store._thread.write(lambda database: database.delete_ephemeral())
            undo.pop_all()
        return store

    async def get(self, key: str) -> Node | None:
        """Return the node, or None."""
        return await self._thread.read(lambda database: database.get(key))

    async def read(self, reads: Sequence[Read]) -> list[list[Node]]:
        """Return the nodes of each read, all of one state."""
        check_transaction((), (), reads)
        return await self._thread.read(lambda database: database.read(reads))

    async def put(self, key: str, value: bytes, *, expected: int | None = None, ephemeral: bool = False) -> int:
        """Write and return the new version; durable. BadVersionError, MetadataUnavailableError."""
        check_key(key)
        check_value(key, value)
        return await self._thread.write(lambda database: database.put(key, bytes(value), expected, ephemeral))

    async def put_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        """Create the next numbered node; returns its key."""
        check_key(sequence_parent(prefix))
        check_value(prefix, value)
        return await self._thread.write(lambda database: database.put_sequential(prefix, bytes(value), ephemeral))

    async def delete(self, key: str, *, expected: int | None = None) -> None:
        """Remove the node. NodeMissingError, BadVersionError."""
        check_key(key)
        await self._thread.write(lambda database: database.delete(key, expected))

    async def transact(
        self, checks: Sequence[Check], operations: Sequence[Operation], reads: Sequence[Read] = ()
    ) -> list[list[Node]]:
        """Execute all operations or none. BadVersionError."""
        check_transaction(checks, operations, reads)
        return await self._thread.write(lambda database: database.transact(checks, operations, reads))

    async def children(self, key: str) -> list[str]:
        """Return the names of the direct children, sorted."""
        return await self._thread.read(lambda database: database.children(key))

    async def count(self, prefix: str) -> int:
        """Return the number of nodes under the prefix."""
        start, end = prefix.encode(), prefix_end(prefix.encode())
        return await self._thread.read(lambda database: database.count(start, end))

    async def scan(self, prefix: str, *, page_keys: int = 1000, keys_only: bool = False) -> AsyncIterator[list[Node]]:
        """Yield pages of one snapshot of the database."""
        start, end = prefix.encode(), prefix_end(prefix.encode())
        snapshot = await self._thread.read(lambda database: database.snapshot())
        try:
            while True:
                at = start
                page = await self._thread.read(lambda _: snapshot.page(at, end, page_keys, keys_only))  # noqa: B023
                if page:
                    yield page
                if len(page) < page_keys:
                    return
                start = page[-1].key.encode() + b"\0"
        finally:
            if not self._closed:
                await self._thread.read(lambda _: snapshot.close())

    async def watch(self, prefix: str) -> EventQueue:
        """Watch changes under the prefix from now on."""
        self._watches = [watch for watch in self._watches if not watch.closed]
        watch = EventQueue(prefix)
        self._watches.append(watch)
        return watch

    @property
    def connection_breaks(self) -> int:
        """Always 0: there is no connection."""
        return 0

    def on_session(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Register a listener that is never called: the session ends only with the process."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    async def close(self) -> None:
        """Delete the ephemeral nodes, close the database, unlock the folder. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._thread.write(lambda database: database.delete_ephemeral())
        finally:
            await self._thread.stop()
            for watch in self._watches:
                await watch.close()
            os.close(self._lock)

    def _on_events(self, events: list[Event]) -> None:
        for watch in self._watches:
            for event in events:
                if event.key.startswith(watch.prefix):
                    watch.offer(event)


def lock_folder(folder: Path) -> int:
    """Create and lock the folder; return the descriptor of the lock, which also ends with the process."""
    try:
        for path in make_private_dirs(str(folder)):
            sync_path(Path(path).parent)
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    except OSError as error:
        raise StartupError(f"the metadata folder {folder} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StartupError(f"the metadata folder {folder} is in use by another process; stop it first") from error
    return lock
