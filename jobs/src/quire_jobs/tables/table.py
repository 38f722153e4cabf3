"""The common interface of both kinds of tables, and the choice of the kind. For the driver; blocking."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from quire_jobs.tables.target import TableFormat, TableTarget

if TYPE_CHECKING:
    import pyarrow as pa

    from quire_jobs.tables.data_files import DataFile, FileStore
    from quire_jobs.tables.layout import Layout
    from quire_jobs.tables.marks import Mark
    from quire_jobs.tables.version import Version

SWEEP_AFTER_S = 3 * 86_400.0
"""Time for which files without a snapshot are kept: for readers of an older snapshot, and for slow writers."""


class Table(Protocol):
    """One table. Errors: JobOptionsError, QuireJobError, SourceUnavailableError; one line, without credentials."""

    @property
    def shown(self) -> str:
        """Name for users."""
        ...

    @property
    def store(self) -> "FileStore":
        """Store to which tasks write the files."""
        ...

    @property
    def folder(self) -> str:
        """Folder of the files in the store."""
        ...

    def marks(self) -> Mapping[str, str]:
        """Return the marks of the table's commits; empty if the table does not exist."""
        ...

    def schema(self) -> "pa.Schema | None":
        """Return the columns; None if the table does not exist."""
        ...

    def version(self) -> "Version":
        """Return the newest state. Its marks describe exactly the rows of its files."""
        ...

    def files(self, version: str = "") -> "list[DataFile]":
        """Return the files of a version; without a name, of the newest one. QuireJobError: the version has expired, or
        rows were deleted from files, which only an Iceberg engine can read then."""
        ...

    def prepare(self, schema: "pa.Schema", layout: "Layout") -> None:
        """Create the table, or add these columns to it. JobOptionsError if they do not fit."""
        ...

    def commit(
        self, files: "Sequence[DataFile]", schema: "pa.Schema", mark: "Mark", *, began_ms: int, replace: bool = False
    ) -> str | None:
        """List these files, once for the work of `mark`. Return the snapshot's name; None if the work was already done.

        `replace`: remove all present files. `began_ms`: when the writing of the first file began.
        """
        ...

    def merge(self, removed: "Sequence[DataFile]", added: "Sequence[DataFile]", *, began_ms: int) -> bool:
        """Replace files by others with the same rows. Return False if some of them are no longer in the table.

        `began_ms`: as for `commit`.
        """
        ...

    def sweep(self) -> int:
        """Remove unlisted files, if the table does that itself. Return the count."""
        ...


def open_table(target: TableTarget, *, sweep_after_s: float = SWEEP_AFTER_S) -> Table:
    """Return the table; `prepare` creates a missing one. JobOptionsError: unknown catalog or unsupported URL."""
    if target.format is TableFormat.ICEBERG:
        from quire_jobs.tables.iceberg_table import IcebergTable

        return IcebergTable(target)
    from quire_jobs.tables.parquet_table import ParquetTable

    return ParquetTable(target, sweep_after_s=sweep_after_s)
