"""Decodes payloads of one schema version: its fields, and the values of a payload. Pure.

A record gives its fields, a primitive type one field `value`, a KeyValue schema two fields `key` and `value`, with
records as structs.
"""

import struct
from typing import Any, Protocol

import pyarrow as pa

from quire_broker.schemas.stored import Schema, SchemaType, split_key_value
from quire_jobs.decode.avro_values import AvroRecord
from quire_jobs.decode.primitive_values import PRIMITIVES
from quire_jobs.decode.protobuf_values import ProtobufMessage

_I32 = struct.Struct(">i")


class _Reader(Protocol):
    """Decodes payloads to values of the Arrow type `type`."""

    type: pa.DataType

    def value(self, payload: bytes) -> Any:
        """Return the value of a payload. Any exception: the payload does not match the schema."""
        ...


class _Primitive:
    def __init__(self, kind: SchemaType) -> None:
        self.type, self.value = PRIMITIVES[kind]


def _reader(schema: Schema) -> _Reader:
    """Return the reader of a schema. ValueError if the definition is invalid or has no column type."""
    if schema.type in (SchemaType.AVRO, SchemaType.JSON):
        return AvroRecord(schema.data, as_json=schema.type is SchemaType.JSON)
    if schema.type is SchemaType.PROTOBUF_NATIVE:
        return ProtobufMessage(schema.data)
    if schema.type is SchemaType.PROTOBUF:
        raise ValueError(
            "a schema of type PROTOBUF has no descriptors; let producers use ProtobufNative, which includes them"
        )
    if schema.type not in PRIMITIVES:
        raise ValueError(f"payloads of a schema of type {schema.type.name} cannot be decoded")
    return _Primitive(schema.type)


class PayloadDecoder:
    """Decodes payloads of one schema version. ValueError if its payloads cannot be decoded at all."""

    def __init__(self, schema: Schema) -> None:
        self._key: _Reader | None = None
        self._separated = False
        if schema.type is SchemaType.KEY_VALUE:
            key, value = split_key_value(schema)
            self._key, self._value = _reader(key), _reader(value)
            self._separated = schema.properties.get("kv.encoding.type") == "SEPARATED"
            self.fields = [pa.field("key", self._key.type), pa.field("value", self._value.type)]
            return
        self._value = _reader(schema)
        self._is_record = pa.types.is_struct(self._value.type)
        self.fields = list(self._value.type) if self._is_record else [pa.field("value", self._value.type)]

    def row(self, payload: bytes, key: bytes | None) -> dict[str, Any]:
        """Return the values of the fields; missing ones are null. Any exception: the payload does not match the
        schema."""
        if self._key is None:
            value = self._value.value(payload)
            if not self._is_record:
                return {"value": value}
            if not isinstance(value, dict):
                raise TypeError(f"expected a record, found {type(value).__name__}")
            return value
        inline: bytes | None = payload
        if not self._separated:
            key, inline = _split(payload)
        return {
            "key": None if key is None else self._key.value(key),
            "value": None if inline is None else self._value.value(inline),
        }


def _split(payload: bytes) -> tuple[bytes | None, bytes | None]:
    """Return key and value of `keyLength(4) key valueLength(4) value`; a length of -1 means null."""
    parts: list[bytes | None] = []
    position = 0
    for _ in range(2):
        (length,) = _I32.unpack_from(payload, position)
        position += 4
        if length < -1 or position + length > len(payload):
            raise ValueError(f"a part of {length} bytes in a KeyValue payload of {len(payload)}")
        parts.append(None if length < 0 else payload[position : position + length])
        position += max(0, length)
    if position != len(payload):
        raise ValueError(f"{len(payload) - position} bytes remain after key and value")
    return parts[0], parts[1]
