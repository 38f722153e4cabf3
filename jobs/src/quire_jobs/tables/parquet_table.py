"""A table of Parquet files in a folder or bucket, with its log (`snapshots`). Commits, sweeps; reads no rows.

Data files are written first, each with its own name. Then one object of the log, which lists them, is created unless it
exists. A crash before that leaves files that no reader opens, and the next sweep removes them.
"""

import io
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa

from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import ConfigError, ObjectStoreError, QuireError
from quire_bookie.limits import MIB
from quire_bookie.model import Buffer
from quire_bookie.object_store.opening import open_object_store
from quire_bookie.object_store.store import ObjectStore
from quire_jobs.errors import JobOptionsError, QuireJobError, SourceUnavailableError
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.tables.data_files import DataFile, FileStore
from quire_jobs.tables.layout import Layout
from quire_jobs.tables.marks import Mark, outdated
from quire_jobs.tables.snapshots import (
    CHECKPOINT_EVERY,
    FOLDER,
    Change,
    State,
    commit_of,
    decode_log,
    encode_snapshot,
    first_needed,
    snapshot_name,
    version_of,
)
from quire_jobs.tables.target import TableTarget
from quire_jobs.tables.version import Version

COMMIT_TRIES = 20
T = TypeVar("T")
DATA = "data"
_PART_BYTES = 8 * MIB
_PARTS_AT_ONCE = 4


class ParquetTable:
    """Implements `Table` for Parquet. `sweep_after_s`: age at which unlisted files are removed; a commit may take
    half."""

    def __init__(self, target: TableTarget, *, sweep_after_s: float) -> None:
        self.shown = target.shown
        self.store: FileStore = PlaceStore(target.name, target.region, target.endpoint)
        self.folder = DATA
        self._name = target.name
        self._target = target
        self._sweep_after_ms = int(sweep_after_s * 1000)
        self._clock = SystemClock()

    # ---- reading
    def state(self, version: int | None = None) -> State:
        """Return this version; None for the newest one."""
        return self._run(lambda: self._load(version)) if self._exists else State()

    def marks(self) -> Mapping[str, str]:
        """Return the marks of the table's commits."""
        return self.state().marks

    def schema(self) -> pa.Schema | None:
        """Return the columns; None if the table does not exist."""
        return self.state().schema

    def version(self) -> Version:
        """Return the newest state."""
        state = self.state()
        return Version(str(state.version) if state.version else "", state.marks, state.schema)

    def files(self, version: str = "") -> list[DataFile]:
        """Return the files of a version; without a name, of the newest one."""
        return list(self.state(int(version) if version else None).files.values())

    # ---- writing
    def prepare(self, schema: pa.Schema, layout: Layout) -> None:
        """Create the table, or check that rows with these columns fit it. JobOptionsError."""
        if self._name.startswith("file:"):
            _make_folder(self._name)
        try:
            found = self.state()
        except SourceUnavailableError as error:
            raise JobOptionsError(f"table = {self._name}: cannot use it: {error}") from error
        merged_columns(found.schema, schema, self.shown)
        if not found.version:
            self._commit(lambda state: None if state.version else Change(schema=schema))

    def commit(
        self, files: Sequence[DataFile], schema: pa.Schema, mark: Mark, *, began_ms: int, replace: bool = False
    ) -> str | None:
        """List these files, once for the work of `mark`. Return the snapshot's name; None if the work was already
        done."""

        def change(state: State) -> Change | None:
            value = mark.merged(state.marks.get(mark.key), self._clock.now_ms())
            if value is None:
                return None
            self._require_unswept(began_ms, "this commit")
            columns = merged_columns(state.schema, schema, self.shown)
            removed = tuple(state.files) if replace else ()
            marks: dict[str, str | None] = dict.fromkeys(outdated(state.marks)) | {mark.key: value}
            return Change(tuple(files), removed, marks, None if columns == state.schema else columns)

        version = self._commit(change)
        return None if version is None else str(version)

    def merge(self, removed: Sequence[DataFile], added: Sequence[DataFile], *, began_ms: int) -> bool:
        """Replace files by others with the same rows. Return False if some of them are no longer in the table."""

        def change(state: State) -> Change | None:
            if any(file.path not in state.files for file in removed):
                return None
            self._require_unswept(began_ms, "this merge of small files")
            return Change(tuple(added), tuple(file.path for file in removed))

        return self._commit(change) is not None

    def _require_unswept(self, began_ms: int, what: str) -> None:
        """Raise QuireJobError if a sweep may already have removed the first of the files, since no commit lists them
        yet."""
        took_ms = self._clock.now_ms() - began_ms
        if took_ms > self._sweep_after_ms // 2:
            raise QuireJobError(
                f"{self.shown}: {what} took {took_ms // 1000} s, longer than half of the "
                f"{self._sweep_after_ms // 1000} s for which a sweep keeps unlisted files; write less at a time, or "
                "with more executors"
            )

    def sweep(self) -> int:
        """Remove files that commits removed or never listed, once they are too old to be read or written. Return the
        count."""
        return self._run(self._sweep) if self._exists else 0

    @property
    def _exists(self) -> bool:
        return not self._name.startswith("file:") or Path(urlsplit(self._name).path).is_dir()

    # ---- in the event loop
    @property
    def _objects(self) -> ObjectStore:
        return _objects(self._target.name, self._target.region, self._target.endpoint)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with _as_job_errors(self._name):
            return shared_loop().run(work)

    def _commit(self, change: Callable[[State], Change | None]) -> int | None:
        """Commit the change that `change(state)` returns, None for nothing. Return the new version."""
        return self._run(lambda: self._committed(change))

    async def _committed(self, change: Callable[[State], Change | None]) -> int | None:
        objects, commit = self._objects, uuid4().hex
        for _ in range(COMMIT_TRIES):
            state = await self._load()
            wanted = change(state)
            if wanted is None:
                return None
            now_ms = self._clock.now_ms()
            after = state.after(wanted, now_ms)
            name = snapshot_name(after.version)
            try:
                await objects.put(name, encode_snapshot(after, wanted, commit, now_ms))
            except ObjectStoreError:
                found = await objects.get(name)
                if found is None:
                    raise
                if commit_of(found) != commit:  # another commit; otherwise the response to the first try was lost
                    continue
            return after.version
        raise QuireJobError(f"{self.shown}: {COMMIT_TRIES} times another commit came first; try again later")

    async def _load(self, last: int | None = None) -> State:
        objects = self._objects
        if last is None:
            last = max(
                [each for name in await objects.names(FOLDER) if (each := version_of(name)) is not None], default=0
            )
        if not last:
            return State()
        values = []
        for version in range(first_needed(last), last + 1):
            value = await objects.get(snapshot_name(version))
            if value is None:
                raise QuireJobError(f"{self.shown}: snapshot {version} of its log is missing; read a newer version")
            values.append(value)
        return decode_log(values)

    async def _sweep(self) -> int:
        objects = self._objects
        state = await self._load()
        before_ms = self._clock.now_ms() - self._sweep_after_ms
        old = [
            each.name
            async for each in objects.stored(DATA)
            if each.modified_ms < before_ms and each.name not in state.files
        ]
        going = [name for name in old if state.gone.get(name, 0) < before_ms]
        for name in going:
            await objects.delete(name)
        forgotten = tuple(name for name, at in state.gone.items() if at < before_ms)
        if forgotten:
            await self._committed(lambda _: Change(swept=forgotten))
        # Keep young objects: if they were removed, a slow commit could reuse a version's name and be in no reader's
        # log.
        log = [each.name async for each in objects.stored(FOLDER) if each.modified_ms < before_ms]
        for name in log:
            version = version_of(name)
            if version is not None and version < first_needed(state.version) - CHECKPOINT_EVERY:
                await objects.delete(name)
        return len(going)


@dataclass(frozen=True, slots=True)
class PlaceStore:
    """Accesses the files of a table in an object store, with the credentials of the process that opens it."""

    url: str
    region: str = ""
    endpoint: str = ""

    def put(self, path: str, data: Buffer) -> None:
        """See `FileStore`."""
        objects = _objects(self.url, self.region, self.endpoint)

        async def parts() -> AsyncIterator[Buffer]:
            for at in range(0, len(data), _PART_BYTES):
                yield bytes(data[at : at + _PART_BYTES])

        async def write() -> None:
            if len(data) <= _PART_BYTES:
                await objects.put(path, bytes(data))
            else:
                await objects.put_stream(path, parts(), part_bytes=_PART_BYTES, parts_at_once=_PARTS_AT_ONCE)

        with _as_job_errors(self.url):
            shared_loop().run(write)

    def open(self, path: str, size_bytes: int) -> io.RawIOBase:
        """See `FileStore`."""
        return _RangeFile(_objects(self.url, self.region, self.endpoint), path, size_bytes)


class _RangeFile(io.RawIOBase):
    """Reads an object as a file, with range requests."""

    def __init__(self, objects: ObjectStore, name: str, size_bytes: int) -> None:
        self._objects = objects
        self._name = name
        self._at = 0
        self._size = size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._size, self._at + len(view))
        if end <= self._at:
            return 0
        with _as_job_errors(self._objects.url):
            found = shared_loop().run(lambda: self._objects.get_range(self._name, self._at, end))
        view[: len(found)] = found
        self._at += len(found)
        return len(found)


@contextmanager
def _as_job_errors(url: str) -> Iterator[None]:
    """Turn errors of the object store into errors that a job reports to its user."""
    try:
        yield
    except ConfigError as error:
        raise JobOptionsError(f"table = {url}: {error}") from error
    except QuireError as error:
        raise SourceUnavailableError(f"table {url}: {error}") from error


def merged_columns(known: pa.Schema | None, given: pa.Schema, name: str) -> pa.Schema:
    """Return the columns of both, those of the table first. JobOptionsError if a column has two types."""
    if known is None:
        return given
    for field in given:
        index = known.get_field_index(field.name)
        if index < 0:
            known = known.append(field)
        elif known.field(index).type != field.type:
            raise JobOptionsError(
                f"table {name}: column {field.name} is {known.field(index).type} in the table and {field.type} in the "
                "new rows; cast it, or write to another table"
            )
    return known


@lru_cache(maxsize=16)
def _objects(url: str, region: str, endpoint: str) -> ObjectStore:
    environment = dict(os.environ)
    if region:
        environment["AWS_REGION"] = region
    return open_object_store(url, environment, endpoint or None)


def _make_folder(url: str) -> None:
    try:
        Path(urlsplit(url).path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobOptionsError(f"table = {url}: cannot create the folder: {error.strerror}") from error
