"""Decodes payloads of Avro and JSON schemas (an Avro schema defines both) to Python values for Arrow. Pure.

    Avro                                 Arrow
    boolean, int, long, float, double    bool, int32, int64, float32, float64
    string, enum                         string
    bytes, fixed                         binary; decimal128 with the logical type decimal
    array, map, record                   list, map<string, ...>, struct
    int date                             date32
    long timestamp-millis, -micros       timestamp[us, UTC]
    long local-timestamp-*               timestamp[us]
    union with null                      the other branch, nullable
    union of other types                 the wider number, else the value's JSON as a string
        other logical types                  the underlying type

Times of day remain numbers, because Spark has no type for them.
"""

import io
import json
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, TypeAlias

import fastavro
import pyarrow as pa
from fastavro.read import LOGICAL_READERS

from quire_jobs.decode.arrow_types import TypeBudget, TypeConflictError, merged

Avro: TypeAlias = Any
Fix = Callable[[Any], Any]
"""Turns a value of the parser into one that Arrow accepts; None if no change is needed."""

_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_UTC_TIME = pa.timestamp("us", tz="UTC")
_LOCAL_TIME = pa.timestamp("us")
_LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _UTC_TIME,
    ("long", "timestamp-micros"): _UTC_TIME,
    ("long", "local-timestamp-millis"): _LOCAL_TIME,
    ("long", "local-timestamp-micros"): _LOCAL_TIME,
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ZERO = date(1970, 1, 1)
_DECIMAL_DIGITS_MAX = 38
_DECIMAL_BYTES_MAX = 64
_DECIMAL = "quire-decimal"
"""The logical type decimal in a schema that the parser gets: its own reader of decimals takes time by the square of a
payload's size."""
_EXACT = Context(prec=_DECIMAL_DIGITS_MAX, traps=[Inexact, InvalidOperation])


class AvroRecord:
    """A parsed Avro schema with its Arrow `type`; decodes payloads. ValueError: the schema is invalid or has no
    type."""

    def __init__(self, definition: bytes, *, as_json: bool) -> None:
        try:
            parsed = json.loads(definition)
            self._named: dict[str, Avro] = {}
            self._written = self._plain(parsed, "")
            self._reader = fastavro.parse_schema(self._written)
        except (ValueError, KeyError, TypeError, RecursionError, fastavro.schema.SchemaParseException) as error:
            raise ValueError(f"not an Avro schema: {error}") from error
        except fastavro.schema.UnknownType as error:
            raise ValueError(f"not an Avro schema: unknown type {error}") from error
        self._open: list[str] = []
        self._budget = TypeBudget()
        self._as_json = as_json
        self.type = self._arrow(self._written)
        self._fix = self._fixed(self._written)

    def value(self, payload: bytes) -> Any:
        """Return the value of a payload. Any exception: the payload does not match the schema."""
        if self._as_json:
            value = json.loads(payload)
        else:
            stream = io.BytesIO(payload)
            value = fastavro.schemaless_reader(stream, self._reader, None)
            if stream.tell() != len(payload):
                raise ValueError(f"{len(payload) - stream.tell()} bytes remain after the record")
        return value if self._fix is None else self._fix(value)

    def _plain(self, schema: Avro, namespace: str) -> Avro:
        """Return the schema without logical types that have no column type; record named types by full name."""
        if isinstance(schema, list):
            return [self._plain(each, namespace) for each in schema]
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else _full(schema, namespace)
        made = dict(schema)
        kind = made["type"]
        if isinstance(kind, dict | list):
            return self._plain(kind, namespace)
        logical = made.get("logicalType")
        if logical == "decimal":
            made["logicalType"] = _DECIMAL
            precision, scale = int(made.get("precision", 0)), int(made.get("scale", 0))
            if not 0 < precision <= _DECIMAL_DIGITS_MAX or kind not in ("bytes", "fixed"):
                del made["logicalType"]
            elif not 0 <= scale <= precision:
                raise ValueError(f"a decimal of {precision} digits with a scale of {scale}")
        elif logical is not None and (kind, logical) not in _LOGICAL:
            del made["logicalType"]
        if kind in ("record", "error", "enum", "fixed"):
            full = _full(made["name"], made.pop("namespace", namespace) or "")
            made["name"] = full
            self._named[full] = made
            if kind in ("record", "error"):
                inner = full.rpartition(".")[0]
                made["fields"] = [
                    {"name": field["name"], "type": self._plain(field["type"], inner)} for field in made["fields"]
                ]
        elif kind == "array":
            made["items"] = self._plain(made["items"], namespace)
        elif kind == "map":
            made["values"] = self._plain(made["values"], namespace)
        elif kind not in _PRIMITIVES:
            return _full(kind, namespace)
        return made

    def _resolved(self, schema: Avro) -> tuple[str, Avro]:
        if isinstance(schema, list):
            return "union", schema
        if isinstance(schema, str):
            return (schema, {"type": schema}) if schema in _PRIMITIVES else self._resolved(self._named[schema])
        return ("record" if schema["type"] == "error" else schema["type"]), schema

    # to Arrow

    def _arrow(self, schema: Avro) -> pa.DataType:
        with self._budget:
            return self._arrow_of(*self._resolved(schema))

    def _arrow_of(self, kind: str, body: Avro) -> pa.DataType:
        if kind == "union":
            return self._arrow_of_union(body)
        if kind == "record":
            return self._arrow_of_record(body)
        if kind == "array":
            return self._arrow_of_array(body["items"])
        if kind == "map":
            return pa.map_(pa.string(), self._arrow(body["values"]))
        if kind == "enum":
            return pa.string()
        logical = body.get("logicalType")
        if logical == _DECIMAL:
            return pa.decimal128(int(body["precision"]), int(body.get("scale", 0)))
        if kind == "fixed":
            return pa.binary()
        return _LOGICAL.get((kind, str(logical)), _PRIMITIVES[kind])

    def _arrow_of_array(self, items: Avro) -> pa.DataType:
        made = pa.list_(self._arrow(items))
        if not self._as_json and self._takes_no_bytes(items):
            raise ValueError("an array of items that take no bytes: a few bytes of a payload make any number of them")
        return made

    def _takes_no_bytes(self, schema: Avro) -> bool:
        kind, body = self._resolved(schema)
        if kind == "record":
            with self._budget:
                return all(self._takes_no_bytes(field["type"]) for field in body["fields"])
        return kind == "null" or (kind == "fixed" and not body["size"])

    def _arrow_of_record(self, body: Mapping[str, Avro]) -> pa.DataType:
        name = body["name"]
        if name in self._open:
            raise ValueError(f"record {name} contains itself, which no column type supports")
        names = [field["name"] for field in body["fields"]]
        if len(set(names)) < len(names):
            raise ValueError(f"record {name} has two fields of one name")
        self._open.append(name)
        made = pa.struct([pa.field(field["name"], self._arrow(field["type"])) for field in body["fields"]])
        self._open.pop()
        return made

    def _arrow_of_union(self, branches: list[Avro]) -> pa.DataType:
        kind = pa.null()
        try:
            for branch in branches:
                found = self._arrow(branch)
                if pa.types.is_nested(found) and not pa.types.is_null(kind) and found != kind:
                    return pa.string()
                kind = merged(kind, found, "")
        except TypeConflictError:
            return pa.string()
        return pa.string() if pa.types.is_binary(kind) and len(branches) > 2 else kind

    # values

    def _fixed(self, schema: Avro) -> Fix | None:
        kind, body = self._resolved(schema)
        if kind == "union":
            return self._fixed_union(body)
        if kind == "record":
            fixes = {field["name"]: fix for field in body["fields"] if (fix := self._fixed(field["type"])) is not None}
            return _of_record(fixes) if fixes or self._as_json else None
        if kind == "array":
            return _of_items(self._fixed(body["items"]))
        if kind == "map":
            return _of_map(self._fixed(body["values"]))
        return self._fixed_leaf(kind, body) if self._as_json else None

    def _fixed_leaf(self, kind: str, body: Mapping[str, Avro]) -> Fix | None:
        """Return the conversion of a JSON value, since JSON has neither bytes nor times."""
        logical = str(body.get("logicalType"))
        if logical == _DECIMAL:
            return _decimal_of_text(int(body["precision"]), int(body.get("scale", 0)))
        if kind in ("bytes", "fixed"):
            return lambda value: b64decode(value, validate=True)
        if logical == "date":
            return lambda value: _DAY_ZERO + timedelta(days=value)
        if (kind, logical) in _LOGICAL:
            unit = timedelta(milliseconds=1) if logical.endswith("millis") else timedelta(microseconds=1)
            start = _EPOCH.replace(tzinfo=None) if logical.startswith("local") else _EPOCH
            return lambda value: start + value * unit
        if kind in ("string", "enum"):
            return _text
        if kind in ("int", "long"):
            return _integer
        return _flag if kind == "boolean" else _number

    def _fixed_union(self, branches: list[Avro]) -> Fix | None:
        others = [branch for branch in branches if branch != "null"]
        if len(others) == 1:
            return _unless_null(self._fixed(others[0]))
        if pa.types.is_string(self._arrow(branches)):
            return _as_text
        return None


def _decimal_of_bytes(data: bytes, schema: Avro, _: object = None) -> Decimal:
    """Read a decimal as the parser asks for it. ValueError if it has more digits than the schema says."""
    if len(data) > _DECIMAL_BYTES_MAX:
        raise ValueError(f"a decimal of {len(data)} bytes")
    value = int.from_bytes(data, "big", signed=True)
    if abs(value) >= 10 ** int(schema["precision"]):
        raise ValueError(f"a decimal of more than {schema['precision']} digits")
    return Decimal(value).scaleb(-int(schema.get("scale", 0)), _EXACT)


def _decimal_of_text(precision: int, scale: int) -> Fix:
    """Return the conversion of a JSON value. Its range is checked here: an exponent of -999999999 crashes pyarrow."""
    unit, bound = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)

    def fix(value: Any) -> Decimal:
        try:
            made = Decimal(str(value))
            if made.is_finite() and made.copy_abs() < bound:
                return made.quantize(unit, context=_EXACT)
        except (Inexact, InvalidOperation):
            pass
        raise ValueError(f"not a decimal of {precision} digits with a scale of {scale}")

    return fix


LOGICAL_READERS[f"bytes-{_DECIMAL}"] = LOGICAL_READERS[f"fixed-{_DECIMAL}"] = _decimal_of_bytes


def _of_items(fix: Fix | None) -> Fix | None:
    return None if fix is None else lambda value: [fix(each) for each in value]


def _of_map(fix: Fix | None) -> Fix:
    """Return the conversion of a map to the pairs that Arrow accepts."""
    if fix is None:
        return lambda value: list(value.items())
    return lambda value: [(key, fix(each)) for key, each in value.items()]


def _unless_null(fix: Fix | None) -> Fix | None:
    return None if fix is None else lambda value: None if value is None else fix(value)


def _of_record(fixes: Mapping[str, Fix]) -> Fix:
    def fix(value: Any) -> Any:
        if not isinstance(value, dict):
            raise TypeError(f"expected an object, found {type(value).__name__}")
        for name, change in fixes.items():
            found = value.get(name)
            if found is not None:
                value[name] = change(found)
        return value

    return fix


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, default=lambda other: other.decode("latin-1") if isinstance(other, bytes) else str(other))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {value!r}")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"expected an integer, found {value!r}")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, found {value!r}")
    return value
