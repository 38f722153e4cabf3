"""The common parameters of analyses. Imports no Spark."""

import re
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from quire_jobs.job import JobParameters
from quire_jobs.quantities import Duration, Moment

_PLACE: Final = re.compile(r"(?:s3|gs|az)://[^/@?#]+(?:/[^?#]*)?|file:///[^?#]+")
_LAST_S_MAX: Final = 100 * 365 * 86400.0
_NAMESPACE: Final = re.compile(r"[^./]+(?:\.[^./]+)+")


class AnalysisParameters(JobParameters):
    """Parameters of every analysis."""

    output: str = Field(
        description="Location of the results: s3://bucket/folder, gs://bucket/folder, az://container/folder, file:///folder."
    )
    region: str = Field(default="", description="Region of the bucket, if the environment does not set it.")
    endpoint: str = Field(default="", description="URL of an S3 service other than Amazon's.")
    format: Literal["parquet", "iceberg"] = Field(
        default="parquet", description="Format of the tables: parquet, next to the report; or iceberg, in a catalog."
    )
    tables: str = Field(default="", description="With format=iceberg: catalog.namespace for the tables <kind>_<name>.")
    as_of: Moment = Field(default=None, description="Compute ages and forecasts as of this time, ISO 8601. [now]")
    top: int = Field(default=20, ge=1, le=1000, description="Maximum of topics, keys or rows in the report.")

    @field_validator("output")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        value = re.sub("^s3a://", "s3://", value)  # Hadoop's name
        if not _PLACE.fullmatch(value):
            raise ValueError(
                "not a supported location; give s3://bucket/folder, gs://bucket/folder, az://container/folder or "
                "file:///folder, without credentials or options"
            )
        return value.rstrip("/")

    @field_validator("format", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _names_a_catalog(self) -> "AnalysisParameters":
        if (self.format == "iceberg") != bool(self.tables):
            raise ValueError("format = iceberg needs tables = catalog.namespace, and vice versa: give both or neither")
        if self.tables and not _NAMESPACE.fullmatch(self.tables):
            raise ValueError(f"tables = {self.tables!r}: not an Iceberg namespace; give catalog.namespace")
        return self

    @property
    def computes_little(self) -> bool:
        """Always: Spark's own part of an analysis is counts and sums."""
        return True

    @cached_property
    def now_s(self) -> float:
        """Time as of which the analysis computes, in seconds since 1970; the same for the whole run."""
        return (self.as_of or datetime.now(UTC)).timestamp()


class MetadataParameters(AnalysisParameters):
    """Parameters of an analysis that reads metadata."""

    topics: tuple[str, ...] = Field(
        default=(), description="Only topics that match tenant/namespace/name, with * and ?. [all]"
    )

    @model_validator(mode="after")
    def _names_a_cluster(self) -> "MetadataParameters":
        if not self.metadata:
            raise ValueError(
                "metadata is missing; give the metadata store of the cluster, etcd://host:2379, or a broker, "
                "http://host:8080"
            )
        return self


class MessageParameters(AnalysisParameters):
    """Parameters of an analysis that reads messages."""

    topics: tuple[str, ...] = Field(
        default=(), description="Topics to read: names, or tenant/namespace/pattern with * and ?."
    )
    messages: str = Field(
        default="",
        description="A table with the columns of messages, to read instead of the cluster: its URL, or "
        "catalog.namespace.table of Iceberg.",
    )
    start_time: Moment = Field(default=None, description="Only messages published at or after this time, ISO 8601.")
    end_time: Moment = Field(default=None, description="Only messages published before this time, ISO 8601.")
    last: Duration | None = Field(
        default=None,
        gt=0,
        le=_LAST_S_MAX,
        description="Only messages published within this period before asOf, e.g. 24h; replaces startTime and endTime.",
    )

    @model_validator(mode="after")
    def _names_messages(self) -> "MessageParameters":
        if bool(self.messages) == bool(self.topics):
            raise ValueError("give either topics, to read the cluster, or messages, to read a table")
        if self.topics and not self.metadata:
            raise ValueError(
                "metadata is missing; give the metadata store of the cluster, etcd://host:2379, or a broker, "
                "http://host:8080"
            )
        if self.last is not None and (self.start_time or self.end_time):
            raise ValueError("last excludes startTime and endTime: give either last, or these")
        if self.start_time and self.end_time and self.start_time >= self.end_time:
            raise ValueError(
                f"startTime {self.start_time.isoformat()} is not before endTime {self.end_time.isoformat()}"
            )
        return self

    @property
    def bounds(self) -> tuple[datetime | None, datetime | None]:
        """Range of publish times: first bound included, second excluded; None for no bound."""
        if self.last is None:
            return self.start_time, self.end_time
        end = datetime.fromtimestamp(self.now_s, UTC)
        return end - timedelta(seconds=self.last), end
