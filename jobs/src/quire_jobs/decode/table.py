"""Decodes messages to typed rows, each payload by its own schema version, in one superset of all versions.

A row that cannot be decoded keeps its metadata and has null in every field; `_error` contains the reason and `_payload`
the bytes. Filter by `_error IS NOT NULL` for a dead-letter table. Fields that a version does not have are null;
defaults of readers' schemas are not applied.

Schemas come from the metadata store and from schema ledgers on the bookies, like the messages. So a table can be read
while no broker runs, and tasks send no requests to brokers. Source: spec pulsar-wire, section 12.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from quire_broker.names import TopicName, parse_topic
from quire_broker.schemas.registry import SchemaRegistry
from quire_broker.schemas.stored import Schema, schema_id
from quire_jobs.decode.arrow_types import TypeConflictError, merged_fields
from quire_jobs.decode.columns import MESSAGE_SCHEMA
from quire_jobs.decode.payloads import PayloadDecoder
from quire_jobs.errors import TableSchemaError, UndecodableError

_META = [each for each in MESSAGE_SCHEMA if each.name not in ("payload", "_error")]
_VERSION_BYTES = 8
_DECODERS_MAX = 10_000
"""Versions that are kept: messages may name versions that do not exist."""
Versions = Mapping[int, Schema]


@dataclass(frozen=True)
class TablePlan:
    """The driver's plan for the tasks: the schemas by topic (its key in the registry) and version."""

    schemas: Mapping[str, Versions]
    fields: tuple[pa.Field, ...]
    unusable: Mapping[tuple[str, int], str] = field(default_factory=dict)
    """Versions with which no payload can be decoded, and the reason."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of the table: metadata with the prefix `_`, the fields, `_payload` and `_error`."""
        meta = [pa.field(f"_{each.name}", each.type) for each in _META]
        return pa.schema([*meta, *self.fields, pa.field("_payload", pa.binary()), pa.field("_error", pa.string())])


def plan_table(schemas: Mapping[str, Versions]) -> TablePlan:
    """Return the superset of all versions of all topics. TableSchemaError names versions that do not fit together."""
    fields: list[pa.Field] = []
    unusable: dict[tuple[str, int], str] = {}
    seen = ""
    for topic, versions in schemas.items():
        for version, schema in sorted(versions.items()):
            try:
                found = PayloadDecoder(schema).fields
            except ValueError as error:
                unusable[topic, version] = str(error)
                continue
            try:
                fields = merged_fields(fields, found)
            except TypeConflictError as error:
                raise TableSchemaError(
                    f"schema version {version} of {topic} does not fit {seen}: {error}; "
                    "read the versions separately, in mode messages with a filter on schema_version"
                ) from error
            seen = f"the versions up to {version} of {topic}"
    if not seen:
        named = ", ".join(schemas)
        why = "; ".join(f"version {version} of {topic}: {text}" for (topic, version), text in unusable.items())
        raise TableSchemaError(f"{named}: no usable schema for decoding messages ({why or 'none is registered'})")
    _check_names(fields)
    return TablePlan(schemas, tuple(fields), unusable)


def _check_names(fields: list[pa.Field]) -> None:
    """Raise TableSchemaError for two columns whose names differ only in case, which Spark ignores."""
    taken = {f"_{each.name}": "a column of metadata" for each in _META} | {
        "_payload": "the column of undecodable payloads",
        "_error": "the column of errors",
    }
    for each in fields:
        other = taken.get(each.name.lower())
        if other is not None:
            raise TableSchemaError(f"field {each.name} has the same name as {other}; read the topic in mode messages")
        taken[each.name.lower()] = f"field {each.name}"


async def fetch_schemas(registry: SchemaRegistry, topics: list[TopicName]) -> dict[str, dict[int, Schema]]:
    """Return all versions of the topics' schemas, including those before a deletion. Errors of metadata and ledgers."""
    identities = dict.fromkeys(map(schema_id, topics))
    return {
        identity: {each.version: each.schema for each in await registry.history(identity)} for identity in identities
    }


class TableDecoder:
    """Decodes the messages of a task. `fail`: raise UndecodableError at the first payload that does not match its
    schema."""

    def __init__(self, plan: TablePlan, *, fail: bool = False) -> None:
        self._plan = plan
        self._fail = fail
        self._struct = pa.struct(plan.fields)
        self._identities: dict[str, str] = {}
        self._decoders: dict[tuple[str, bytes | None], Callable[[bytes, bytes | None], dict[str, Any]] | str] = {}

    def rows(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Return typed rows with the columns of the plan. `messages`: a batch with all columns of MESSAGE_SCHEMA."""
        errors: list[str | None] = messages.column("_error").to_pylist()
        payloads: list[bytes | None] = messages.column("payload").to_pylist()
        values: list[dict[str, Any] | None] = [None] * len(payloads)
        topics = messages.column("topic").to_pylist()
        versions = messages.column("schema_version").to_pylist()
        keys = messages.column("key_bytes").to_pylist()
        for number, payload in enumerate(payloads):
            if payload is None or errors[number] is not None:
                continue
            decode = self._decoder(topics[number], versions[number])
            if isinstance(decode, str):
                errors[number] = decode
                continue
            try:
                values[number] = decode(payload, keys[number])
            except Exception as error:  # noqa: BLE001  a decoder may raise anything for bytes of another schema
                errors[number] = (
                    f"does not match schema version {_number(versions[number])}: {type(error).__name__}: {error}"
                )
        columns = self._columns(values, errors)
        self._raise_if_asked(messages, errors)
        return self._assembled(messages, columns, payloads, errors)

    def _decoder(self, topic: str, version: bytes | None) -> Callable[[bytes, bytes | None], dict[str, Any]] | str:
        """Return the decoder for messages of this version, or the reason why there is none."""
        if version is not None and len(version) != _VERSION_BYTES:
            return f"a schema version of {len(version)} bytes; it has {_VERSION_BYTES}"
        found = self._decoders.get((topic, version))
        if found is None:
            if len(self._decoders) >= _DECODERS_MAX:
                self._decoders.clear()
            found = self._decoders[topic, version] = self._made(topic, version)
        return found

    def _made(self, topic: str, version: bytes | None) -> Callable[[bytes, bytes | None], dict[str, Any]] | str:
        if version is None:
            return "the message has no schema version"
        identity = schema_id(parse_topic(topic))
        schema = self._plan.schemas.get(identity, {}).get(_number(version))
        if schema is None:
            return f"schema version {_number(version)} of {identity} did not exist when the read was planned"
        unusable = self._plan.unusable.get((identity, _number(version)))
        return f"schema version {_number(version)}: {unusable}" if unusable else PayloadDecoder(schema).row

    def _columns(self, values: list[dict[str, Any] | None], errors: list[str | None]) -> list[pa.Array]:
        """Return the fields as arrays; a row that Arrow rejects gets an error."""
        try:
            return _flat(pa.array(values, self._struct))
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            for number, value in enumerate(values):
                try:
                    pa.array([value], self._struct)
                except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                    values[number] = None
                    errors[number] = f"a value does not fit its column: {error}"
            return _flat(pa.array(values, self._struct))

    def _raise_if_asked(self, messages: pa.RecordBatch, errors: list[str | None]) -> None:
        bad = next((number for number, error in enumerate(errors) if error is not None), None)
        if self._fail and bad is not None:
            where = messages.slice(bad, 1).select(["topic", "ledger", "entry", "batch_index"]).to_pylist()[0]
            raise UndecodableError(
                f"{where['topic']}, entry {where['ledger']}:{where['entry']}, batch index {where['batch_index']}: "
                f"{errors[bad]}; without failOnUndecodable such rows are returned with _error and _payload"
            )

    def _assembled(
        self,
        messages: pa.RecordBatch,
        columns: list[pa.Array],
        payloads: list[bytes | None],
        errors: list[str | None],
    ) -> pa.RecordBatch:
        raw = [payload if error is not None else None for payload, error in zip(payloads, errors, strict=True)]
        meta = [messages.column(each.name) for each in _META]
        arrays = [*meta, *columns, pa.array(raw, pa.binary()), pa.array(errors, pa.string())]
        return pa.RecordBatch.from_arrays(arrays, schema=self._plan.schema)


def _flat(rows: pa.StructArray) -> list[pa.Array]:
    return list(rows.flatten())


def _number(version: bytes | None) -> int:
    """Return the version number: its bytes are a big-endian integer."""
    return -1 if version is None else int.from_bytes(version, "big", signed=True)
