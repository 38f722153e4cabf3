"""A table of an Iceberg catalog, by PyIceberg. Commits; reads no rows.

Files are written by Spark's tasks and added by one commit of the catalog, together with the mark, which is a property
of the table (`quire.mark.<key>`): in the same transaction, so both are there or neither. Properties outlive snapshots
that expire. The snapshot's own properties say it too (`quire.mark`, `quire.mark-value`), for people.

PyIceberg repeats a commit by itself after somebody else's came first. Ours must look at the mark again before that,
so its repeats are off for our commits, and only for those. A commit that a catalog did not answer may have happened:
the mark says so, a little later.
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
from pyiceberg.transforms import HourTransform, IdentityTransform
from pyiceberg.utils.config import Config

from quire_bookie.env.clock import SystemClock
from quire_bookie.model import Buffer
from quire_jobs.errors import QuireJobError, SourceUnavailableError
from quire_jobs.tables import catalog_errors
from quire_jobs.tables.catalog_errors import patiently, told
from quire_jobs.tables.data_files import DataFile, FileStore
from quire_jobs.tables.layout import BUCKET, Layout
from quire_jobs.tables.marks import Mark, outdated
from quire_jobs.tables.parquet_table import united
from quire_jobs.tables.target import TableTarget

if TYPE_CHECKING:
    from pyiceberg.table import Transaction

PREFIX = "quire.mark."
COMMIT_TRIES = 20
_OURS = {"commit.retry.num-retries": "0"}


class IcebergTable:
    """See the module's text."""

    def __init__(self, target: TableTarget) -> None:
        """JobOptionsError: no such catalog."""
        self.shown = target.shown
        self._identifier = target.identifier
        self._clock = SystemClock()
        self._catalog = patiently(self.shown, lambda: _catalog(target.catalog))

    @property
    def store(self) -> FileStore:
        """See `Table`. After `prepare`."""
        found = patiently(self.shown, self._existing)
        return IcebergStore(found.io, found.location())

    @property
    def folder(self) -> str:
        """Below the table's location."""
        return f"{patiently(self.shown, self._existing).location().rstrip('/')}/data"

    # ---- reading
    def marks(self) -> Mapping[str, str]:
        """What its commits stand for."""
        found = patiently(self.shown, self._load)
        return {} if found is None else _marks(found)

    def schema(self) -> pa.Schema | None:
        """Its columns; None: there is no table."""
        found = patiently(self.shown, self._load)
        return None if found is None else _plain(found.schema().as_arrow())

    def files(self) -> list[DataFile]:
        """What is in it. QuireJobError where rows were deleted from files."""
        tasks = patiently(self.shown, lambda: list(self._existing().scan().plan_files()))
        if any(task.delete_files for task in tasks):
            raise QuireJobError(f"{self.shown}: rows were deleted from its files; read it with an Iceberg engine")
        return [_file(task.file) for task in tasks]

    # ---- writing
    def prepare(self, schema: pa.Schema, layout: Layout) -> None:
        """See `Table`. What a lost answer leaves is found by the next try."""

        def fit() -> None:
            found = self._load()
            if found is None:
                self._make(schema, layout)
                return
            columns = _plain(found.schema().as_arrow())
            if united(columns, schema, self.shown) != columns:
                with found.update_schema() as update:
                    update.union_by_name(schema)

        patiently(self.shown, fit)

    def _make(self, schema: pa.Schema, layout: Layout) -> None:
        self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
        try:
            making = self._catalog.create_table_transaction(self._identifier, schema=schema)
            if layout.partitioned:
                with making.update_spec() as spec:
                    if layout.hour_of:
                        spec.add_field(layout.hour_of, HourTransform(), f"{layout.hour_of}_hour")
                    if layout.bucket_of:
                        spec.add_field(BUCKET, IdentityTransform(), f"{BUCKET}_part")
            making.commit_transaction()
        except TableAlreadyExistsError:
            return

    def commit(
        self, files: Sequence[DataFile], schema: pa.Schema, mark: Mark, *, began_ms: int, replace: bool = False
    ) -> str | None:
        """See `Table`. `began_ms` says nothing here: files that no snapshot names are left to the catalog's engines."""

        def change(table: Opened) -> "Transaction | None":
            marks, now_ms = _marks(table), self._clock.now_ms()
            value = mark.merged(marks.get(mark.key), now_ms)
            if value is None:
                return None
            transaction = table.transaction()
            said = {"quire.mark": mark.key, "quire.mark-value": value}
            if replace and table.current_snapshot() is not None:
                transaction.delete(AlwaysTrue(), snapshot_properties=said)
            # A snapshot also where there are no files: its parent is what makes two commits at once exclude each other.
            transaction.add_files([file.path for file in files], said, check_duplicate_files=False)
            transaction.set_properties({PREFIX + mark.key: value})
            for key in outdated(marks):
                transaction.remove_properties(PREFIX + key)
            return transaction

        return self._commit(change, lambda marks: mark.merged(marks.get(mark.key), 0) is None)

    def merge(self, removed: Sequence[DataFile], added: Sequence[DataFile], *, began_ms: int) -> bool:
        """See `Table`. `began_ms` says nothing here, as in `commit`."""

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
        """Nothing: snapshots expire, and files go, by the catalog's own service or an engine's procedures."""
        return 0

    def _commit(
        self, change: "Callable[[Opened], Transaction | None]", landed: Callable[[Mapping[str, str]], bool]
    ) -> str | None:
        """`change`: what to do, None for nothing. `landed`: whether one whose end is not known is in the table."""
        unknown = False
        delays_s = iter(catalog_errors.RETRY_DELAYS_S)
        for _ in range(COMMIT_TRIES):
            try:
                # Suppressed: somebody else's came first, so all is looked at again.
                with told(self.shown), suppress(CommitFailedException, ValidationException):
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
                        f"{error}; whether its last commit happened is not known: the same again adds nothing twice"
                    ) from error
                time.sleep(delay_s)
        raise QuireJobError(f"{self.shown}: {COMMIT_TRIES} times somebody else committed first; try again later")

    def _existing(self) -> Opened:
        found = self._load()
        if found is None:
            raise QuireJobError(f"there is no table {self.shown}")
        return found

    def _load(self) -> Opened | None:
        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None


@dataclass(frozen=True, slots=True)
class IcebergStore:
    """The files of a table by PyIceberg's file access, as the catalog of the process that opens it has it.

    Not handed from driver to tasks: a catalog may give out credentials with it.
    """

    io: FileIO
    location: str

    def put(self, path: str, data: Buffer) -> None:
        """See `FileStore`."""
        with told(self.location), self.io.new_output(path).create() as stream:
            stream.write(bytes(data))

    def open(self, path: str, size_bytes: int) -> Any:
        """See `FileStore`."""
        with told(self.location):
            return self.io.new_input(path).open()


@functools.lru_cache(maxsize=16)
def _catalog(name: str) -> Catalog:
    # The library's own look at the environment is as of its import.
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
    """Without field ids, and with the types that our files have."""
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
