"""A table of an Iceberg catalog, through PyIceberg. Commits; reads no rows.

Spark's tasks write files, and one commit of the catalog adds them together with the mark, a property of the table
(`quire.mark.<key>`): it is one transaction, so both are present or neither. Properties remain when snapshots expire.
The snapshot's own properties repeat the mark (`quire.mark`, and `quire.mark-value` if it is short) for administrators.

PyIceberg retries a commit by itself after a concurrent commit. Commits of this module must check the mark again before
a retry, so the library's retries are off for them, and only for them. The outcome of a
commit without a response is unknown; the mark, read a little later, shows it.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table as Opened
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform
from pyiceberg.utils.config import Config

from quire_bookie.env.clock import SystemClock
from quire_bookie.model import Buffer
from quire_jobs.errors import QuireJobError, SourceUnavailableError
from quire_jobs.tables import catalog_errors
from quire_jobs.tables.catalog_errors import as_table_errors, with_retries
from quire_jobs.tables.data_files import DataFile, FileStore
from quire_jobs.tables.layout import BUCKET, Layout
from quire_jobs.tables.marks import Mark, outdated
from quire_jobs.tables.parquet_table import merged_columns
from quire_jobs.tables.target import TableTarget
from quire_jobs.tables.version import Version

if TYPE_CHECKING:
    from pyiceberg.table import Transaction

PREFIX = "quire.mark."
COMMIT_TRIES = 20
_SHOWN_VALUE_MAX = 1024
"""Characters of a mark that a snapshot repeats: each later commit writes the snapshots again."""
_OURS = {"commit.retry.num-retries": "0"}


class IcebergTable:
    """Implements `Table` for Iceberg; see the module's docstring."""

    def __init__(self, target: TableTarget) -> None:
        """Open the catalog. JobOptionsError if it is not configured."""
        self.shown = target.shown
        self._identifier = target.identifier
        self._clock = SystemClock()
        self._catalog = with_retries(self.shown, lambda: _catalog(target.catalog))

    @property
    def store(self) -> FileStore:
        """See `Table`. Only after `prepare`."""
        found = with_retries(self.shown, self._existing)
        return IcebergStore(found.io, found.location())

    @property
    def folder(self) -> str:
        """Folder of data files below the table's location."""
        return f"{with_retries(self.shown, self._existing).location().rstrip('/')}/data"

    # ---- reading
    def marks(self) -> Mapping[str, str]:
        """Return the marks of the table's commits."""
        found = with_retries(self.shown, self._load)
        return {} if found is None else _marks(found)

    def schema(self) -> pa.Schema | None:
        """Return the columns; None if the table does not exist."""
        found = with_retries(self.shown, self._load)
        return None if found is None else _plain(found.schema().as_arrow())

    def version(self) -> Version:
        """Return the newest state; one file of the catalog has its snapshot, properties and columns."""
        found = with_retries(self.shown, self._load)
        return (
            Version() if found is None else Version(_snapshot(found), _marks(found), _plain(found.schema().as_arrow()))
        )

    def files(self, version: str = "") -> list[DataFile]:
        """Return the files of a version. QuireJobError if rows were deleted from files."""
        snapshot = int(version) if version else None
        tasks = with_retries(self.shown, lambda: list(self._existing().scan(snapshot_id=snapshot).plan_files()))
        if any(task.delete_files for task in tasks):
            raise QuireJobError(f"{self.shown}: rows were deleted from its files; read it with an Iceberg engine")
        return [_file(task.file) for task in tasks]

    # ---- writing
    def prepare(self, schema: pa.Schema, layout: Layout) -> None:
        """See `Table`. A retry finds the table that a request without a response created."""

        def fit() -> None:
            found = self._load()
            if found is None:
                self._make(schema, layout)
                return
            columns = _plain(found.schema().as_arrow())
            if merged_columns(columns, schema, self.shown) != columns:
                with found.update_schema() as update:
                    update.union_by_name(schema)

        with_retries(self.shown, fit)

    def _make(self, schema: pa.Schema, layout: Layout) -> None:
        self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
        try:
            making = self._catalog.create_table_transaction(self._identifier, schema=schema)
            if layout.partitioned:
                with making.update_spec() as spec:
                    if layout.time_of:
                        period: Transform[Any, Any] = DayTransform() if layout.day_of else HourTransform()
                        spec.add_field(layout.time_of, period, f"{layout.time_of}_{layout.period}")
                    if layout.bucket_of:
                        spec.add_field(BUCKET, IdentityTransform(), f"{BUCKET}_part")
            making.commit_transaction()
        except TableAlreadyExistsError:
            return

    def commit(
        self, files: Sequence[DataFile], schema: pa.Schema, mark: Mark, *, began_ms: int, replace: bool = False
    ) -> str | None:
        """See `Table`. `began_ms` has no effect: engines of the catalog remove files without a snapshot."""

        def change(table: Opened) -> "Transaction | None":
            marks, now_ms = _marks(table), self._clock.now_ms()
            value = mark.merged(marks.get(mark.key), now_ms)
            if value is None:
                return None
            transaction = table.transaction()
            properties = {"quire.mark": mark.key}
            if len(value) <= _SHOWN_VALUE_MAX:
                properties["quire.mark-value"] = value
            if replace and table.current_snapshot() is not None:
                transaction.delete(AlwaysTrue(), snapshot_properties=properties)
            # Add a snapshot even without files: two concurrent commits with the same parent cannot both succeed.
            transaction.add_files([file.path for file in files], properties, check_duplicate_files=False)
            transaction.set_properties({PREFIX + mark.key: value})
            for key in outdated(marks):
                transaction.remove_properties(PREFIX + key)
            return transaction

        return self._commit(change, lambda marks: mark.merged(marks.get(mark.key), 0) is None)

    def merge(self, removed: Sequence[DataFile], added: Sequence[DataFile], *, began_ms: int) -> bool:
        """See `Table`. `began_ms` has no effect, as in `commit`."""

        def change(table: Opened) -> "Transaction | None":
            here = {task.file.file_path: task for task in table.scan().plan_files()}
            if any(file.path not in here or here[file.path].delete_files for file in removed):
                return None
            transaction = table.transaction()
            with transaction.update_snapshot({"quire.compaction": "true"}).overwrite() as overwrite:
                for file in removed:
                    overwrite.delete_data_file(here[file.path].file)
                for file in added:
                    overwrite.append_data_file(parquet_file_to_data_file(table.io, table.metadata, file.path))
            return transaction

        return self._commit(change, lambda _: False) is not None

    def sweep(self) -> int:
        """Return 0: the catalog's service or an engine's procedures expire snapshots and remove files."""
        return 0

    def _commit(
        self, change: "Callable[[Opened], Transaction | None]", landed: Callable[[Mapping[str, str]], bool]
    ) -> str | None:
        """Commit what `change` returns; None: nothing. `landed`: did a commit without a response happen?"""
        unknown = False
        delays_s = iter(catalog_errors.RETRY_DELAYS_S)
        for _ in range(COMMIT_TRIES):
            try:
                # Suppressed: a concurrent commit came first, so everything is read again.
                with as_table_errors(self.shown), suppress(CommitFailedException, ValidationException):
                    table = self._existing()
                    if unknown and landed(_marks(table)):
                        return _snapshot(table)
                    metadata = table.metadata
                    table.metadata = metadata.model_copy(update={"properties": {**metadata.properties, **_OURS}})
                    transaction = change(table)
                    return None if transaction is None else _snapshot(transaction.commit_transaction())
            except SourceUnavailableError as error:
                unknown = True
                delay_s = next(delays_s, None)
                if delay_s is None:
                    raise SourceUnavailableError(
                        f"{error}; the outcome of the last commit is unknown: repeat the write; it adds nothing twice"
                    ) from error
                time.sleep(delay_s)
        raise QuireJobError(f"{self.shown}: {COMMIT_TRIES} times another commit came first; try again later")

    def _existing(self) -> Opened:
        found = self._load()
        if found is None:
            raise QuireJobError(f"table {self.shown} does not exist")
        return found

    def _load(self) -> Opened | None:
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None


@dataclass(frozen=True, slots=True)
class IcebergStore:
    """Accesses the files of a table through PyIceberg, with the catalog of the process that opens it.

    The driver does not pass it to tasks, because a catalog may include credentials in it.
    """

    io: FileIO
    location: str

    def put(self, path: str, data: Buffer) -> None:
        """See `FileStore`."""
        with as_table_errors(self.location), self.io.new_output(path).create() as stream:
            stream.write(bytes(data))

    def open(self, path: str, size_bytes: int) -> Any:
        """See `FileStore`."""
        with as_table_errors(self.location):
            return self.io.new_input(path).open()


@functools.lru_cache(maxsize=16)
def _catalog(name: str) -> Catalog:
    # PyIceberg reads the environment only once, at its import.
    given = Config().get_catalog_config(name) or {}
    return load_catalog(name, **{key: value for key, value in given.items() if isinstance(value, str)})


def _marks(table: Opened) -> dict[str, str]:
    found = table.metadata.properties
    return {key.removeprefix(PREFIX): value for key, value in found.items() if key.startswith(PREFIX)}


def _snapshot(table: Opened) -> str:
    current = table.current_snapshot()
    return "" if current is None else str(current.snapshot_id)


def _file(found: Any) -> DataFile:
    assert found.content == DataFileContent.DATA
    partition = "/".join(str(value) for value in found.partition)
    return DataFile(found.file_path, found.record_count, found.file_size_in_bytes, partition)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return the schema without field ids, in the types that the job's files have."""
    return pa.schema([_plain_field(each) for each in schema])


def _plain_field(given: pa.Field) -> pa.Field:
    return pa.field(given.name, _plain_kind(given.type), True)


def _plain_kind(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(each) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_kind(kind.key_type), _plain_field(kind.item_field))
    return kind
