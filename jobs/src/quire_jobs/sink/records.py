"""Makes an Avro definition from the columns of a DataFrame, and payloads in Avro or JSON from its rows. Pure.

Every field is nullable with the default null, so that columns can be added and removed under every compatibility
strategy. Times are microseconds since the epoch, dates are days. In JSON, bytes are base64 and decimals are text.
"""

import io
import json
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa

from quire_jobs.errors import TableSchemaError

Avro: TypeAlias = Any
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ZERO = date(1970, 1, 1)
_SIMPLE = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "int"),
    (pa.types.is_int16, "int"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_large_binary, "bytes"),
)


def definition_of(fields: list[pa.Field], name: str = "Row") -> dict[str, Avro]:
    """Return the Avro record of these columns. TableSchemaError names a column that Avro cannot represent."""
    listed = []
    for field in fields:
        plain = field.name.isascii() and field.name.isidentifier()
        if not plain:
            raise TableSchemaError(
                f"column {field.name!r} is not a valid name in an Avro record: rename it, using letters, digits and _"
            )
        listed.append(
            {"name": field.name, "type": ["null", _avro(field.type, f"{name}_{field.name}")], "default": None}
        )
    return {"type": "record", "name": name, "fields": listed}


def _avro(kind: pa.DataType, name: str) -> Avro:
    for is_kind, avro in _SIMPLE:
        if is_kind(kind):
            return avro
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _avro(kind.value_type, name)]}
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _avro(kind.item_type, name)]}
    if pa.types.is_struct(kind):
        return definition_of(list(kind), name)
    raise TableSchemaError(f"column {name.partition('_')[2]} of type {kind} has no Avro type: cast or drop it")


def avro_payloads(definition: dict[str, Avro]) -> Callable[[dict[str, Any]], bytes]:
    """Return an Avro encoder of rows as `to_pylist` returns them."""
    parsed = fastavro.parse_schema(definition)
    maps = _has_maps(definition)

    def encode(row: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, _with_dicts(row, definition) if maps else row)
        return out.getvalue()

    return encode


def json_payloads(definition: dict[str, Avro]) -> Callable[[dict[str, Any]], bytes]:
    """Return a JSON encoder of rows as `to_pylist` returns them."""
    maps = _has_maps(definition)

    def encode(row: dict[str, Any]) -> bytes:
        shown = _with_dicts(row, definition) if maps else row
        return json.dumps(shown, default=_jsonable, separators=(",", ":"), ensure_ascii=False).encode()

    return encode


def _has_maps(schema: Avro) -> bool:
    return '"map"' in json.dumps(schema)


def _with_dicts(value: Any, schema: Avro) -> Any:
    """Turn the pairs that Arrow returns for a map into the dict that both encoders need."""
    if isinstance(schema, list):
        return None if value is None else _with_dicts(value, schema[1])
    if not isinstance(schema, dict):
        return value
    if schema["type"] == "map":
        return {key: _with_dicts(item, schema["values"]) for key, item in value}
    if schema["type"] == "array":
        return [_with_dicts(item, schema["items"]) for item in value]
    if schema["type"] == "record":
        return {field["name"]: _with_dicts(value[field["name"]], field["type"]) for field in schema["fields"]}
    return value


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        since = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
        return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if isinstance(value, date):
        return (value - _DAY_ZERO).days
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON representation")
