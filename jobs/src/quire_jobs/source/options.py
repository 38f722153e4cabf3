"""The options of the source, checked before any request is sent. Owns every default; opens nothing.

Spark passes option names in lower case, so names are compared without case. Credentials are not options: they come from
the environment or from the file that `config` names (docs/spark.md).
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from quire_broker.errors import InvalidTopicNameError
from quire_broker.managed_ledger.position import EARLIEST, LATEST, Position
from quire_broker.names import parse_namespace, parse_topic
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.broker_http import is_http_address

_SIZE = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SUBJECTS = ("topic", "topics", "managed_ledger", "ledgers")
_IGNORED = {"inferschema"}
_OFFSET = re.compile(r"(-1|\d{1,19}):(-1|\d{1,19})")
Offsets = tuple[tuple[str, Position], ...]
"""The last entry of each managed ledger that counts; entry -1: none of that ledger."""


class Mode(StrEnum):
    """The content of a row: a stored entry, a message, or a message with its payload as typed columns."""

    ENTRIES = "entries"
    MESSAGES = "messages"
    TABLE = "table"


class SourceOptions(BaseModel):
    """All options. Positions are `ledger:entry`; sizes may end in k, m or g; times are ISO 8601 or milliseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    metadata: str = Field(
        description="metadata store of the cluster, etcd://host:2379,host:2379; or HTTP address of a broker"
    )
    config: str = Field("", description="file with more settings and credentials, on the driver and on all executors")
    topic: str = Field("", description="a topic with all its partitions, or one partition; also the path of load()")
    topics: str = Field(
        "", description="all topics that match tenant/namespace/pattern; the pattern may contain * and ?"
    )
    managed_ledger: str = Field("", description="name of a managed ledger, e.g. tenant/namespace/persistent/topic")
    ledgers: tuple[int, ...] = Field((), description="ids of ledgers, separated by commas")
    mode: Mode = Field(Mode.MESSAGES, description="entries, messages or table")
    columns: tuple[str, ...] = Field((), description="columns to return, separated by commas; default: all")
    start_position: Position | None = Field(None, description="first entry: ledger:entry, earliest or latest")
    end_position: Position | None = Field(None, description="last entry, ledger:entry")
    start_ledger: int | None = Field(None, ge=0, description="first ledger")
    end_ledger: int | None = Field(None, ge=0, description="last ledger")
    start_time: datetime | None = Field(
        None, description="begin with the first message published at or after this time"
    )
    end_time: datetime | None = Field(None, description="end before the first message published at or after this time")
    start_after: Offsets | None = Field(
        None, description="JSON, managed ledger to ledger:entry: begin after these entries; others from their beginning"
    )
    end_at: Offsets | None = Field(
        None, description="JSON, managed ledger to ledger:entry: last entries to read; nothing of others"
    )
    split_bytes: int = Field(64 << 20, ge=1, description="stored bytes that one Spark task reads")
    batch_bytes: int = Field(
        4 << 20, ge=1, le=1 << 30, description="stored bytes that a task reads and decodes at a time"
    )
    batch_rows: int = Field(65_536, ge=1, description="entries that a task reads at a time")
    time_tolerance_s: int = Field(
        3600,
        ge=0,
        description="largest difference between clocks of producers and brokers, in s; filters skip ledgers by it",
    )
    connection_idle_s: float = Field(
        20.0, ge=0, le=3600, description="seconds after its last task until a Python worker closes its connections"
    )
    connection_age_max_s: float = Field(
        300.0,
        ge=0,
        le=86_400,
        description="seconds until connections are replaced, so that renewed credentials are used",
    )
    read_priority: Literal["tiered-storage-first", "bookkeeper-first"] = Field(
        "tiered-storage-first", description="tier to read from if a ledger is in both"
    )
    http: str = Field(
        "",
        description="HTTP address of a broker, for cursors that keep the data and for the newest entry; default: "
        "metadata, if it is such an address",
    )
    job_id: str = Field("", description="id in the name of the cursor quire.job.<id> that keeps the data; needs http")
    fail_on_data_loss: bool = Field(True, description="false: skip lost entries and log them")
    fail_on_undecodable: bool = Field(
        False, description="mode table: true fails the job at a payload that does not match its schema"
    )
    max_entries_per_trigger: int = Field(
        0, ge=0, description="streaming: maximum of entries in one micro-batch; 0: no limit"
    )
    max_bytes_per_trigger: int = Field(
        0, ge=0, description="streaming: maximum of stored bytes in one micro-batch; 0: no limit"
    )
    cursor: str = Field(
        "", description="streaming: subscription that commits advance, so that trimming waits for it; needs http"
    )

    @field_validator("ledgers", mode="before")
    @classmethod
    def _ledger_ids(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError as error:
            raise ValueError("not ledger ids separated by commas; give e.g. 12,13") from error

    @field_validator("columns", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("split_bytes", "batch_bytes", "max_bytes_per_trigger", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise ValueError("not a number of bytes; give e.g. 67108864, 64m or 1g")
        return int(match[1]) * _FACTORS[match[2].lower()]

    @field_validator("start_position", "end_position", mode="before")
    @classmethod
    def _position(cls, value: Any) -> Any:
        return parse_position(value) if isinstance(value, str) else value

    @field_validator("start_after", "end_at", mode="before")
    @classmethod
    def _offsets(cls, value: Any) -> Any:
        return parse_offsets(value) if isinstance(value, str) else value

    @field_validator("start_time", "end_time", mode="before")
    @classmethod
    def _time(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            if value.strip().isdecimal():
                return datetime.fromtimestamp(int(value) / 1000, UTC)
            time = datetime.fromisoformat(value.strip())
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError("not a time; give e.g. 2026-01-31T12:00:00Z, or milliseconds since 1970") from error
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

    @field_validator("topic")
    @classmethod
    def _topic_name(cls, value: str) -> str:
        try:
            return str(parse_topic(value)) if value else value
        except InvalidTopicNameError as error:
            raise ValueError(str(error)) from error

    @field_validator("topics")
    @classmethod
    def _topic_pattern(cls, value: str) -> str:
        tenant_and_namespace, slash, pattern = value.removeprefix("persistent://").rpartition("/")
        if value and not (slash and pattern):
            raise ValueError("not tenant/namespace/pattern; give e.g. public/default/orders-*")
        if value:
            try:
                parse_namespace(tenant_and_namespace)
            except InvalidTopicNameError as error:
                raise ValueError(str(error)) from error
        return value.removeprefix("persistent://")

    @model_validator(mode="after")
    def _fits_together(self) -> "SourceOptions":
        given = [to_camel(name) for name in _SUBJECTS if getattr(self, name)]
        if len(given) != 1:
            named = " and ".join(given) if given else "none"
            raise ValueError(f"give exactly one of topic, topics, managedLedger and ledgers; given: {named}")
        for side in ("start", "end"):
            bounds = [f"{side}_{kind}" for kind in ("position", "ledger", "time", "after", "at")]
            both = [to_camel(name) for name in bounds if getattr(self, name, None) is not None]
            if len(both) > 1:
                raise ValueError(f"{' and '.join(both)} are bounds of the same side; give one of them")
        if self.mode is Mode.TABLE and self.ledgers:
            raise ValueError("mode table needs the schemas of a topic: name the topic, or read ledgers as messages")
        self._check_order()
        for name in ("job_id", "cursor"):
            if getattr(self, name) and not self.http:
                raise ValueError(f"{to_camel(name)} needs http, the address of a broker: http://host:port")
        if "@" in self.http:
            raise ValueError("http: an address without user and password; QUIRE_TOKEN holds the token")
        if self.http and not self.http.startswith(("http://", "https://")):
            raise ValueError(f"http {self.http!r}: expected http://host:port or https://host:port")
        if self.ledgers and (self.job_id or self.cursor):
            raise ValueError("ledgers have no cursors: leave out jobId and cursor, or name the topic")
        return self

    def _check_order(self) -> None:
        for kind in ("position", "ledger", "time"):
            low, high = getattr(self, f"start_{kind}"), getattr(self, f"end_{kind}")
            if low is not None and high is not None and low > high and low != LATEST:
                name = kind.capitalize()
                raise ValueError(f"start{name} {low} is after end{name} {high}")


def parse_position(text: str) -> Position:
    """Return the position for `ledger:entry`, `earliest` or `latest`. Raises ValueError."""
    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    ledger, colon, entry = text.partition(":")
    if not (colon and ledger.isdecimal() and entry.isdecimal()):
        raise ValueError("not a position; give ledger:entry, e.g. 12:0, or earliest or latest")
    return Position(int(ledger), int(entry))


def parse_offsets(text: str) -> Offsets:
    """Return the offsets for JSON such as `{"public/default/persistent/orders": "12:199"}`. Raises ValueError."""
    wrong = 'not offsets; give JSON such as {"public/default/persistent/orders": "12:199"}'
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(wrong) from error
    found = []
    for name, position in given.items() if isinstance(given, dict) else [("", None)]:
        match = _OFFSET.fullmatch(str(position))
        if match is None:
            raise ValueError(wrong)
        found.append((name, Position(int(match[1]), int(match[2]))))
    return tuple(found)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Return the options that Spark passes. JobOptionsError names the option, its value and the expected form."""
    names = {to_camel(name).lower(): to_camel(name) for name in SourceOptions.model_fields}
    values: dict[str, str] = {}
    for key, value in given.items():
        lower = key.lower()
        if lower in _IGNORED:
            continue
        if lower == "path":
            lower = "topic"
        if lower not in names:
            near = get_close_matches(lower, names, 1)
            hint = f"did you mean {names[near[0]]}?" if near else f"known options: {', '.join(sorted(names.values()))}"
            raise JobOptionsError(f"quire source: unknown option {key}; {hint}")
        values[names[lower]] = value
    if not values.get("metadata"):
        raise JobOptionsError(
            "quire source: option metadata is missing; give the metadata store of the cluster, etcd://host:2379, "
            "or the HTTP address of a broker"
        )
    if not values.get("http") and is_http_address(values["metadata"]):
        values["http"] = values["metadata"]
    try:
        return SourceOptions.model_validate(values)
    except ValidationError as error:
        raise JobOptionsError("quire source: " + "; ".join(map(_explained, error.errors()))) from None


def _explained(problem: Mapping[str, Any]) -> str:
    text = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:
        return text
    return f"{problem['loc'][0]} = {problem['input']!r}: {text}"
