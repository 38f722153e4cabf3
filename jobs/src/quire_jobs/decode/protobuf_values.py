"""Decodes payloads of native Protobuf schemas, whose definition contains its descriptors. Pure.

    schema data = {"fileDescriptorSet": base64, "rootMessageTypeName": "pkg.Message", "rootFileDescriptorName": "..."}

Enums become their names (an unknown number becomes its digits), unsigned 64-bit integers become int64 as in Java. Unset
fields with presence are null, others have Protobuf's default. Every schema has its own descriptor pool, because
versions define the same names.
"""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from quire_jobs.decode.arrow_types import TypeBudget

_SIGN = 1 << 63
_TYPES = {
    FieldDescriptor.CPPTYPE_INT32: pa.int32(),
    FieldDescriptor.CPPTYPE_INT64: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_UINT64: pa.int64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_FLOAT: pa.float32(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
    FieldDescriptor.CPPTYPE_ENUM: pa.string(),
}


class ProtobufMessage:
    """A root message with its Arrow `type`; decodes payloads. ValueError if the schema is invalid."""

    def __init__(self, definition: bytes) -> None:
        try:
            decoded = json.loads(definition)
            files = FileDescriptorSet.FromString(b64decode(decoded["fileDescriptorSet"], validate=True))
            pool = DescriptorPool()
            _add_all(pool, list(files.file))
            root = pool.FindMessageTypeByName(decoded["rootMessageTypeName"])
        except (ValueError, KeyError, TypeError, RecursionError, DecodeError, Base64Error) as error:
            raise ValueError(f"not a native Protobuf schema: {error}") from error
        self._open: list[str] = []
        self._budget = TypeBudget()
        self.type = self._struct(root)
        self._class = GetMessageClass(root)

    def value(self, payload: bytes) -> Any:
        """Return the value of a payload. Any exception: the payload does not match the schema."""
        return _shown(self._class.FromString(payload))

    def _struct(self, message: Descriptor) -> pa.DataType:
        if message.full_name in self._open:
            raise ValueError(f"message {message.full_name} contains itself, which no column type supports")
        self._open.append(message.full_name)
        made = pa.struct([pa.field(field.name, self._arrow(field)) for field in message.fields])
        self._open.pop()
        return made

    def _arrow(self, field: FieldDescriptor) -> pa.DataType:
        with self._budget:
            return self._arrow_of(field)

    def _arrow_of(self, field: FieldDescriptor) -> pa.DataType:
        if _is_map(field):
            entry = _message_of(field).fields_by_name
            return pa.map_(self._one(entry["key"]), self._one(entry["value"]))
        return pa.list_(self._one(field)) if field.is_repeated else self._one(field)

    def _one(self, field: FieldDescriptor) -> pa.DataType:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            return self._struct(_message_of(field))
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
            return pa.binary() if field.type == FieldDescriptor.TYPE_BYTES else pa.string()
        return _TYPES[field.cpp_type]


def _add_all(pool: DescriptorPool, files: list[FileDescriptorProto]) -> None:
    """Add each file after its imports. ValueError if the imports are circular."""
    names = {each.name for each in files}
    added: set[str] = set()
    while files:
        ready = [each for each in files if added.issuperset(set(each.dependency) & names)]
        if not ready:
            raise ValueError("its files import each other in a circle")
        for each in ready:
            try:
                pool.Add(each)
            except TypeError as error:
                raise ValueError(f"{each.name}: {error}") from error
            added.add(each.name)
        files = [each for each in files if each.name not in added]


def _message_of(field: FieldDescriptor) -> Descriptor:
    assert field.message_type is not None
    return field.message_type


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _shown(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    fields: list[FieldDescriptor] = list(message.DESCRIPTOR.fields)  # type: ignore[arg-type]  # stubs of two kinds
    for field in fields:
        if _is_map(field):
            inner = _message_of(field).fields_by_name["value"]
            found = getattr(message, field.name)
            shown[field.name] = [(key, _value(inner, found[key])) for key in found]
        elif field.is_repeated:
            shown[field.name] = [_value(field, each) for each in getattr(message, field.name)]
        elif not field.has_presence or message.HasField(field.name):
            shown[field.name] = _value(field, getattr(message, field.name))
    return shown


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _shown(value)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        assert field.enum_type is not None
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 and value >= _SIGN:
        return value - 2 * _SIGN
    return value
