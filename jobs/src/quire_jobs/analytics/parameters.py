"""What the kinds of analyses are told, apart from what is particular to each. Imports no Spark."""

import re
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from quire_jobs.job import JobParameters
from quire_jobs.quantities import Duration

_PLACE: Final = re.compile(r"(?:s3|gs|az)://[^/@?#]+(?:/[^?#]*)?|file:///[^?#]+")
_LAST_S_MAX: Final = 100 * 365 * 86400.0
_NAMESPACE: Final = re.compile(r"[^./]+(?:\.[^./]+)+")


def _moment(value: object) -> object:
    if not isinstance(value, str) or not value:
        return value or None
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError("expected a time such as 2026-01-31T12:00:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


Moment = Annotated[datetime | None, BeforeValidator(_moment)]


class AnalysisParameters(JobParameters):
    """What every analysis takes."""

    output: str = Field(
        description="Where it all goes: s3://bucket/folder, gs://bucket/folder, az://container/folder, file:///folder."
    )
    region: str = Field(default="", description="Region of the bucket, if the environment does not say it.")
    endpoint: str = Field(default="", description="URL of an S3 service other than Amazon's.")
    format: Literal["parquet", "iceberg"] = Field(
        default="parquet", description="Of the tables: parquet, beside the report; or iceberg, in a catalog."
    )
    tables: str = Field(
        default="", description="With format=iceberg: catalog.namespace, which gets the tables <kind>_<name>."
    )
    as_of: Moment = Field(default=None, description="Judge ages and forecasts as of this time, ISO 8601. [now]")
    top: int = Field(default=20, ge=1, le=1000, description="Topics, keys or rows that the report shows at most.")

    @field_validator("output")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        value = re.sub("^s3a://", "s3://", value)  # as Hadoop calls them
        if not _PLACE.fullmatch(value):
            raise ValueError(
                "expected s3://bucket/folder, gs://bucket/folder, az://container/folder or file:///folder, without "
                "credentials or options"
            )
        return value.rstrip("/")

    @field_validator("format", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _names_a_catalog(self) -> "AnalysisParameters":
        if (self.format == "iceberg") != bool(self.tables):
            raise ValueError("format = iceberg and tables = catalog.namespace belong together: give both, or neither")
        if self.tables and not _NAMESPACE.fullmatch(self.tables):
            raise ValueError(f"tables = {self.tables!r}: expected catalog.namespace of Iceberg")
        return self

    @cached_property
    def now_s(self) -> float:
        """The time as of which the analysis judges, in seconds since 1970; one for the whole run."""
        return (self.as_of or datetime.now(UTC)).timestamp()


class MetadataParameters(AnalysisParameters):
    """Of an analysis that reads metadata."""

    topics: tuple[str, ...] = Field(
        default=(), description="Only topics that match: tenant/namespace/name, with * and ?. [all]"
    )

    @model_validator(mode="after")
    def _names_a_cluster(self) -> "MetadataParameters":
        if not self.metadata:
            raise ValueError("metadata is missing: where the cluster's metadata is, etcd://host:2379")
        return self


class MessageParameters(AnalysisParameters):
    """Of an analysis that reads messages."""

    topics: tuple[str, ...] = Field(
        default=(), description="Topics to read: a name, or tenant/namespace/pattern with * and ?."
    )
    messages: str = Field(
        default="",
        description="A table with the columns of the messages, instead of the cluster: its URL, or "
        "catalog.namespace.table of Iceberg.",
    )
    start_time: Moment = Field(default=None, description="Only messages published at this time or later, ISO 8601.")
    end_time: Moment = Field(default=None, description="Only messages published before this time, ISO 8601.")
    last: Duration | None = Field(
        default=None,
        gt=0,
        le=_LAST_S_MAX,
        description="Only messages published in this time before asOf, e.g. 24h; instead of startTime and endTime.",
    )

    @model_validator(mode="after")
    def _names_messages(self) -> "MessageParameters":
        if bool(self.messages) == bool(self.topics):
            raise ValueError("give either topics, to read the cluster, or messages, a table of them")
        if self.topics and not self.metadata:
            raise ValueError("metadata is missing: where the cluster's metadata is, etcd://host:2379")
        if self.last is not None and (self.start_time or self.end_time):
            raise ValueError("last says from when to when: leave out startTime and endTime, or last")
        if self.start_time and self.end_time and self.start_time >= self.end_time:
            raise ValueError(
                f"startTime {self.start_time.isoformat()} is not before endTime {self.end_time.isoformat()}"
            )
        return self

    @property
    def bounds(self) -> tuple[datetime | None, datetime | None]:
        """Messages count that were published at the first time or later, and before the second; None: no bound."""
        if self.last is None:
            return self.start_time, self.end_time
        end = datetime.fromtimestamp(self.now_s, UTC)
        return end - timedelta(seconds=self.last), end
