"""Identifies a table: a folder or bucket of Parquet, or a table of an Iceberg catalog. Pure.

    parquet   s3://bucket/folder, gs://bucket/folder, az://container/folder, file:///folder
    iceberg   catalog.namespace.table; PyIceberg's configuration defines the catalog, in a file `.pyiceberg.yaml` or by
              PYICEBERG_CATALOG__<CATALOG>__URI and similar variables

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
        """Return the target. JobOptionsError names the wrong value and the expected form."""
        try:
            kind = TableFormat(format.lower())
        except ValueError:
            raise JobOptionsError(f"format = {format!r}: unknown; give {' or '.join(TableFormat)}") from None
        if kind is TableFormat.ICEBERG:
            parts = name.split(".")
            if len(parts) < 3 or not all(parts) or "/" in name:
                raise JobOptionsError(f"table = {name!r}: not an Iceberg table; give catalog.namespace.table")
            return cls(kind, name)
        parts_of = urlsplit(name)
        if parts_of.scheme not in _SCHEMES or parts_of.query or parts_of.username:
            raise JobOptionsError(
                f"table = {name!r}: not a Parquet table; give s3://bucket/folder, gs://bucket/folder, "
                "az://container/folder or file:///folder"
            )
        if not parts_of.path.strip("/"):
            raise JobOptionsError(f"table = {name!r}: the folder is missing; name one that only this table uses")
        return cls(kind, name.rstrip("/"), region, endpoint)

    @property
    def catalog(self) -> str:
        """Catalog of an Iceberg table."""
        return self.name.partition(".")[0]

    @property
    def identifier(self) -> tuple[str, ...]:
        """Namespaces and name of an Iceberg table."""
        return tuple(self.name.split(".")[1:])

    @property
    def shown(self) -> str:
        """Name for users and for a summary's outputs."""
        return self.name if self.format is TableFormat.PARQUET else f"iceberg:{self.name}"
