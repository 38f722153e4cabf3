"""What the kinds of analyses are told, apart from what is particular to each. Imports no Spark."""

from datetime import UTC, datetime
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, field_validator, model_validator

from quire_jobs.job import JobParameters

_SCHEMES: Final = ("file://", "s3://", "s3a://", "gs://", "abfs://", "abfss://", "hdfs://")


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
        description="Where tables and reports go: file:///folder, s3a://bucket/folder, gs:// or abfss://."
    )
    as_of: Moment = Field(default=None, description="Judge ages and forecasts as of this time, ISO 8601. [now]")
    top: int = Field(default=20, ge=1, le=1000, description="Topics, keys or rows that the report shows at most.")

    @field_validator("output")
    @classmethod
    def _is_a_place(cls, value: str) -> str:
        if not value.startswith(_SCHEMES):
            raise ValueError(f"expected the URL of a folder or bucket: one of {', '.join(_SCHEMES)}")
        return value.rstrip("/")

    @property
    def now_s(self) -> float:
        """The time as of which the analysis judges, in seconds since 1970."""
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
        description="A Parquet table with the columns of the messages, instead of the cluster: its URL.",
    )
    start_time: Moment = Field(default=None, description="Only messages published at this time or later, ISO 8601.")
    end_time: Moment = Field(default=None, description="Only messages published before this time, ISO 8601.")

    @model_validator(mode="after")
    def _names_messages(self) -> "MessageParameters":
        if bool(self.messages) == bool(self.topics):
            raise ValueError("give either topics, to read the cluster, or messages, the URL of a Parquet table")
        if self.topics and not self.metadata:
            raise ValueError("metadata is missing: where the cluster's metadata is, etcd://host:2379")
        if self.start_time and self.end_time and self.start_time >= self.end_time:
            raise ValueError(
                f"startTime {self.start_time.isoformat()} is not before endTime {self.end_time.isoformat()}"
            )
        return self
