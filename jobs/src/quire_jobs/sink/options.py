"""The options of `write.format("quire")`, checked before any request is sent. Owns every default.

Credentials are not options: they come from the environment (QUIRE_TOKEN, QUIRE_TLS_*) of driver and executors.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from quire_broker.errors import InvalidTopicNameError
from quire_broker.names import parse_topic
from quire_jobs.errors import JobOptionsError


class Deduplication(StrEnum):
    """Requirement that brokers drop duplicates, which a retried task sends."""

    REQUIRE = "require"
    ENABLE = "enable"
    OFF = "off"


class PayloadSchema(StrEnum):
    """Content of a payload: the bytes of one column, or a record of all columns that are not metadata."""

    NONE = "none"
    AVRO = "avro"
    JSON = "json"


class SinkOptions(BaseModel):
    """All options of a write."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    service_url: str = Field(description="a broker: pulsar://host:6650 or pulsar+ssl://host:6651")
    topic: str = Field(description="a topic with all its partitions, or one partition; also the path of save()")
    http: str = Field("", description="HTTP address of a broker, http://host:8080, to check and enable deduplication")
    schema_type: PayloadSchema = Field(
        PayloadSchema.NONE,
        alias="schema",
        description="none; or avro or json, to register a schema made from the columns",
    )
    deduplication: Deduplication = Field(
        Deduplication.REQUIRE,
        description="require: reject topics without deduplication; enable: turn it on; off: do not check",
    )
    producer_name: str = Field("", description="prefix of producer names; default: the id of the run or query")
    batch_rows: int = Field(1000, ge=1, le=10_000, description="maximum of messages in one batch")
    batch_bytes: int = Field(128 << 10, ge=1, le=4 << 20, description="maximum of bytes in one batch")
    compression: str = Field("none", description="none, lz4, zlib, zstd or snappy")
    timeout_s: int = Field(120, ge=1, description="seconds for a send, and to wait for an unavailable broker")

    @field_validator("topic")
    @classmethod
    def _topic_name(cls, value: str) -> str:
        try:
            return str(parse_topic(value))
        except InvalidTopicNameError as error:
            raise ValueError(str(error)) from error

    @field_validator("service_url")
    @classmethod
    def _url(cls, value: str) -> str:
        # An address with a password is refused below, without being shown.
        if "@" not in value and not value.startswith(("pulsar://", "pulsar+ssl://")):
            raise ValueError("not a broker address; give pulsar://host:6650 or pulsar+ssl://host:6651")
        return value

    @field_validator("compression")
    @classmethod
    def _codec(cls, value: str) -> str:
        if value.lower() not in ("none", "lz4", "zlib", "zstd", "snappy"):
            raise ValueError("unknown codec; give none, lz4, zlib, zstd or snappy")
        return value.lower()

    @model_validator(mode="after")
    def _fits_together(self) -> "SinkOptions":
        if "@" in self.service_url + self.http:
            raise ValueError("serviceUrl, http: addresses without user and password; QUIRE_TOKEN holds the token")
        if self.deduplication is not Deduplication.OFF and not self.http:
            raise ValueError(
                "deduplication needs http, the address of a broker, to check the topic; "
                "or set deduplication to off and accept duplicates after a retried task"
            )
        return self


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the options that Spark passes. JobOptionsError names the option, its value and the expected form."""
    names = {(field.alias or name).lower(): field.alias or name for name, field in SinkOptions.model_fields.items()}
    values: dict[str, str] = {}
    for key, value in given.items():
        lower = "topic" if key.lower() == "path" else key.lower()
        if lower == "checkpointlocation":
            continue
        if lower not in names:
            near = get_close_matches(lower, names, 1)
            hint = f"did you mean {names[near[0]]}?" if near else f"known options: {', '.join(sorted(names.values()))}"
            raise JobOptionsError(f"quire sink: unknown option {key}; {hint}")
        values[names[lower]] = value
    try:
        return SinkOptions.model_validate(values)
    except ValidationError as error:
        raise JobOptionsError("quire sink: " + "; ".join(map(_explained, error.errors()))) from None


def _explained(problem: Mapping[str, Any]) -> str:
    text = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:
        return text
    name = str(problem["loc"][0])
    return f"option {name} is missing" if problem["type"] == "missing" else f"{name} = {problem['input']!r}: {text}"
