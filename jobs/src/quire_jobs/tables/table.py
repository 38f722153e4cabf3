"""What both kinds of tables do, and which of them a target means. The driver's side; blocking."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from quire_jobs.tables.target import TableFormat, TableTarget

if TYPE_CHECKING:
    import pyarrow as pa

    from quire_jobs.tables.data_files import DataFile, FileStore
    from quire_jobs.tables.layout import Layout
    from quire_jobs.tables.marks import Mark

SWEEP_AFTER_S = 3 * 86_400.0
"""Files that no snapshot names any more, or never did, stay so long: for readers of an older one, and slow writers."""


class Table(Protocol):
    """One table. Errors: JobOptionsError, QuireJobError, SourceUnavailableError; one line, without credentials."""

    @property
    def shown(self) -> str:
        """For people."""
        ...

    @property
    def store(self) -> "FileStore":
        """Where tasks write its files."""
        ...

    @property
    def folder(self) -> str:
        """Where in the store."""
        ...

    def marks(self) -> Mapping[str, str]:
        """What its commits stand for; empty where there is no table."""
        ...

    def schema(self) -> "pa.Schema | None":
        """Its columns; None: there is no table."""
        ...

    def files(self) -> "list[DataFile]":
        """What is in it. QuireJobError where rows were deleted from files, which only an engine can read then."""
        ...

    def prepare(self, schema: "pa.Schema", layout: "Layout") -> None:
        """Make it, or have it take these columns as well. JobOptionsError when they do not fit."""
        ...

    def commit(
        self, files: "Sequence[DataFile]", schema: "pa.Schema", mark: "Mark", *, began_ms: int, replace: bool = False
    ) -> str | None:
        """List these files, once for what `mark` stands for. The snapshot's name; None: it was done before.

        `replace`: in place of all that are there. `began_ms`: when the first of them was begun.
        """
        ...

    def merge(self, removed: "Sequence[DataFile]", added: "Sequence[DataFile]", *, began_ms: int) -> bool:
        """Files in place of others with the same rows. False: some of these are not in the table any more.

        `began_ms`: as for `commit`.
        """
        ...

    def sweep(self) -> int:
        """Remove files that nobody names, where the table does that itself; how many."""
        ...


def open_table(target: TableTarget, *, sweep_after_s: float = SWEEP_AFTER_S) -> Table:
    """The table; made by `prepare` if it is not there. JobOptionsError: no such catalog, no such place."""
    if target.format is TableFormat.ICEBERG:
        from quire_jobs.tables.iceberg_table import IcebergTable

        return IcebergTable(target)
    from quire_jobs.tables.parquet_table import ParquetTable

    return ParquetTable(target, sweep_after_s=sweep_after_s)
