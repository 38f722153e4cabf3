"""The embedded metadata store under power cuts and damage at rest, on its real files.

`Recorder` wraps the change log and calls a hook at each write, sync and commit. A hook copies the folder as a power cut
would leave it: any part of the unsynced writes is kept or lost. SQLite syncs its commits, so its files are copied
unchanged.
"""

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from quire_bookie.metadata.local import change_log
from quire_bookie.metadata.local.change_format import Value
from quire_bookie.metadata.local.change_log import LogFile
from quire_bookie.metadata.local.database import Database
from quire_bookie.metadata.local.inspection import Rows, connect_read_only
from quire_bookie.metadata.local.worker import DatabaseThread, _Job
from quire_bookie.metadata.store import Event, MetadataStats

FILES = ("metadata.db", "metadata.db-wal", "metadata.db-shm", "metadata.log")
Content = dict[bytes, Value]


class Recorder:
    """Records unsynced writes. `hook` is called before and after each step that could be the last before a cut."""

    def __init__(self, hook: Callable[[], None]) -> None:
        self.hook = hook
        self.unsynced: dict[Path, list[tuple[int, bytes, bytes]]] = {}
        """Unsynced writes by file: offset, bytes before, bytes written."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record all stores opened in this context."""
        recorder = self
        commit = Database.commit

        class RecordedFile(LogFile):
            def __init__(self, path: Path, *, create: bool) -> None:
                super().__init__(path, create=create)
                # The name after the rename, which is synced before any other step.
                self.path = path

            def write(self, offset: int, data: bytes) -> None:
                recorder.hook()
                with self.path.open("rb") as file:
                    file.seek(offset)
                    before = file.read(len(data)).ljust(len(data), b"\0")
                super().write(offset, data)
                recorder.unsynced.setdefault(self.path, []).append((offset, before, data))
                recorder.hook()

            def sync(self) -> None:
                super().sync()
                recorder.unsynced.pop(self.path, None)
                recorder.hook()
                # `finish` renames after its only sync.
                self.path = self.path.with_name(change_log.LOG_NAME)

        def recorded(database: Database) -> list[Event]:
            recorder.hook()
            events = commit(database)
            recorder.hook()
            return events

        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(change_log, "LogFile", RecordedFile))
            patches.enter_context(mock.patch.object(Database, "commit", recorded))
            yield

    def cut(self, folder: Path, to: Path, chance: random.Random) -> None:
        """Copy the folder as a power cut now would leave it."""
        shutil.copytree(folder, to, ignore=shutil.ignore_patterns("LOCK", "damaged-*"))
        for path, writes in self.unsynced.items():
            copied = to / path.name
            if not copied.exists():
                continue
            with copied.open("r+b") as file:
                for offset, before, data in reversed(writes):
                    kept = chance.choice((0, len(data), chance.randrange(len(data) + 1)))
                    file.seek(offset + kept)
                    file.write(before[kept:])


class Groups:
    """Runs group commits in the caller's thread, as the store's own thread does. Needs a running loop."""

    def __init__(self) -> None:
        self._thread = DatabaseThread(lambda events: None, MetadataStats())
        self._loop = asyncio.get_running_loop()

    def run(self, database: Database, *writes: Callable[[Database], Any]) -> list[Any]:
        """Run one group and return the results or errors of its writes."""
        jobs = [_Job(write, self._loop.create_future(), True) for write in writes]
        outcomes, _ = self._thread._run_group(database, jobs)
        return [outcome.result if outcome.error is None else outcome.error for outcome in outcomes]


def random_write(chance: random.Random, number: int) -> Callable[[Database], Any]:
    """Draw a write as brokers perform it."""
    key = f"/k/{chance.randrange(40)}"
    kind = chance.choice(("put", "put", "put", "delete", "ephemeral", "sequence", "large"))
    value = f"value {number}".encode() + bytes(chance.randrange(200))
    if kind == "delete":
        return lambda database: database.delete(key, None)
    if kind == "ephemeral":
        return lambda database: database.put(f"/e/{number % 7}", value, None, True)
    if kind == "sequence":
        return lambda database: database.put_sequential("/s/n-", value, bool(number % 2))
    if kind == "large":
        return lambda database: database.put(key, value * 40, None, False)
    return lambda database: database.put(key, value, None, False)


def content_of(database: Database) -> Content:
    """Return all persistent nodes by key."""
    return {key: (version, value) for key, version, value in Rows(database._connection)}


def content_at(folder: Path) -> Content:
    """Return all persistent nodes in the folder of a stopped store."""
    connection = connect_read_only(folder / "metadata.db")
    try:
        return {key: (version, value) for key, version, value in Rows(connection)}
    finally:
        connection.close()


DAMAGES = ("removed", "truncated", "flipped", "wiped", "older")


def damage(folder: Path, name: str, kind: str, older: Path | None, chance: random.Random) -> str:
    """Damage one file, or replace it by an older copy. Returns a description, or "" if that is not possible.

    The database and its write-ahead log are one file in two: an older copy is of both.
    """
    path = folder / name
    if kind == "older":
        names = FILES[:3] if name.startswith("metadata.db") else (name,)
        if older is None or not (older / names[0]).exists():
            return ""
        for each in names:
            (folder / each).unlink(missing_ok=True)
            if (older / each).exists():
                shutil.copy(older / each, folder / each)
        return f"an older copy of {' and '.join(names)}"
    if not path.exists() or not path.stat().st_size:
        return ""
    if kind == "removed":
        path.unlink()
        return f"{name} removed"
    data = bytearray(path.read_bytes())
    # Most bytes of these files are unused zeros: damage only the used part.
    used = max(len(data.rstrip(b"\0")), 1)
    at = chance.randrange(used)
    if kind == "truncated":
        path.write_bytes(data[:at])
        return f"{name} cut at {at} of {len(data)}"
    if kind == "flipped":
        data[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        return f"{name} flipped at {at} of {len(data)}"
    data[at : at + 512] = bytes(min(512, len(data) - at))
    path.write_bytes(data)
    return f"{name} wiped at {at} of {len(data)}"
