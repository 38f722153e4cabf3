"""Which table is meant: a folder or bucket of Parquet, or a table of an Iceberg catalog. Pure.

    parquet   s3://bucket/folder, gs://bucket/folder, az://container/folder, file:///folder
    iceberg   catalog.namespace.table; the catalog is configured as PyIceberg has it, by a file `.pyiceberg.yaml` or by
              PYICEBERG_CATALOG__<CATALOG>__URI and the like

Credentials are never part of it: they come from the usual chain of the process that opens the table.
"""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from quire_jobs.errors import JobOptionsError

_SCHEMES = ("s3", "gs", "az", "file")


class TableFormat(StrEnum):
    """The kinds of tables."""

    PARQUET = "parquet"
    ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True)
class TableTarget:
    """`name`: a URL, or catalog.namespace.table. `region`, `endpoint`: of an S3 service, for Parquet."""

    format: TableFormat
    name: str
    region: str = ""
    endpoint: str = ""

    @classmethod
    def parse(cls, format: str, name: str, *, region: str = "", endpoint: str = "") -> "TableTarget":
        """JobOptionsError says what is wrong with what was given."""
        try:
            kind = TableFormat(format.lower())
        except ValueError:
            raise JobOptionsError(f"format = {format!r}: tables are {' or '.join(TableFormat)}") from None
        if kind is TableFormat.ICEBERG:
            parts = name.split(".")
            if len(parts) < 3 or not all(parts) or "/" in name:
                raise JobOptionsError(f"table = {name!r}: an Iceberg table is named catalog.namespace.table")
            return cls(kind, name)
        parts_of = urlsplit(name)
        if parts_of.scheme not in _SCHEMES or parts_of.query or parts_of.username:
            raise JobOptionsError(
                f"table = {name!r}: a Parquet table is s3://bucket/folder, gs://bucket/folder, az://container/folder "
                "or file:///folder"
            )
        if not parts_of.path.strip("/"):
            raise JobOptionsError(f"table = {name!r}: name a folder in it, which is the table's own")
        return cls(kind, name.rstrip("/"), region, endpoint)

    @property
    def catalog(self) -> str:
        """Of an Iceberg table."""
        return self.name.partition(".")[0]

    @property
    def identifier(self) -> tuple[str, ...]:
        """Of an Iceberg table: namespaces and table."""
        return tuple(self.name.split(".")[1:])

    @property
    def shown(self) -> str:
        """For people and for a summary's outputs."""
        return self.name if self.format is TableFormat.PARQUET else f"iceberg:{self.name}"
