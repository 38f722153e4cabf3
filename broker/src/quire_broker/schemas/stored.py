"""Encodes and decodes stored schemas. Source: spec pulsar-wire, section 12. Pure.

/schemas/<tenant>/<namespace>/<encoded local name>   SchemaLocator: versions -> (ledger, entry), SHA-256 of the data
ledger, one per version, the brokers' password           entry 0: SchemaEntry { SchemaInfo }
"""

import hashlib
from dataclasses import field
from enum import IntEnum

from google.protobuf.message import DecodeError

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_broker.names import TopicName
from quire_broker.schemas.proto import schemas_pb2 as pb

ROOT = "/schemas"
_STORED = 1
"""Difference between the stored number of a type and that on the wire."""


class SchemaType(IntEnum):
    """Schema types with their numbers on the wire. NONE is bytes: such a schema is never registered."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21


AVRO_TYPES = frozenset({SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO})
"""Types whose data is an Avro schema."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as sent by a client."""

    type: SchemaType
    data: bytes
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> bytes:
        """The SHA-256 of the data."""
        return hashlib.sha256(self.data).digest()


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema. `deleted`: no schema from here on. Times are ms since the epoch."""

    version: int
    schema: Schema
    timestamp_ms: int = 0
    deleted: bool = False

    @property
    def version_bytes(self) -> bytes:
        """The version as carried by messages and responses."""
        return self.version.to_bytes(8, "big")


@dataclass(frozen=True, slots=True)
class Location:
    """The ledger and entry of a version."""

    version: int
    ledger_id: int
    entry_id: int
    hash: bytes


def schema_id(topic: TopicName) -> str:
    """Return the key of a topic's schemas in the registry; all partitions share one."""
    whole = topic.partitioned
    return f"{whole.namespace}/{whole.encoded_local}"


def node_path(identity: str) -> str:
    """Return the node of a topic's schemas."""
    return f"{ROOT}/{identity}"


def _index(location: Location) -> pb.IndexEntry:
    position = pb.PositionInfo(ledgerId=location.ledger_id, entryId=location.entry_id)
    return pb.IndexEntry(version=location.version, position=position, hash=location.hash)


def encode_locator(versions: list[Location]) -> bytes:
    """Encode the node's value; the last version counts."""
    return pb.SchemaLocator(info=_index(versions[-1]), index=map(_index, versions)).SerializeToString()


def decode_locator(key: str, value: bytes) -> list[Location]:
    """Return all versions, oldest first; MetadataFormatError names the node."""
    try:
        locator = pb.SchemaLocator.FromString(value)
    except DecodeError as error:
        raise MetadataFormatError(f"{key}: not a schema locator: {error}") from error
    if not locator.IsInitialized():
        raise MetadataFormatError(f"{key}: a schema locator without its newest version")
    found = {
        each.version: Location(each.version, each.position.ledgerId, each.position.entryId, each.hash)
        for each in [*locator.index, locator.info]
    }
    return [found[version] for version in sorted(found)]


def encode_entry(identity: str, stored: StoredSchema, before: list[Location]) -> bytes:
    """Encode the entry of a version; `before`: the existing versions."""
    schema = stored.schema
    info = pb.SchemaInfo(
        schema_id=identity,
        user="",
        type=pb.SchemaInfo.SchemaType.Name(schema.type + _STORED),
        schema=schema.data,
        timestamp=stored.timestamp_ms,
        deleted=stored.deleted,
        props=[pb.SchemaInfo.KeyValuePair(key=key, value=value) for key, value in schema.properties.items()],
    )
    index = before or [Location(stored.version, -1, -1, schema.hash)]
    return pb.SchemaEntry(schema_data=info.SerializeToString(), index=map(_index, index)).SerializeToString()


def decode_entry(version: int, entry: bytes) -> StoredSchema:
    """Decode the schema of a version; MetadataFormatError."""
    try:
        info = pb.SchemaInfo.FromString(pb.SchemaEntry.FromString(entry).schema_data)
        properties = {each.key: each.value for each in info.props}
        schema = Schema(SchemaType(info.type - _STORED), info.schema, properties)
    except (DecodeError, ValueError) as error:
        raise MetadataFormatError(f"the entry of schema version {version} does not parse: {error}") from error
    return StoredSchema(version, schema, info.timestamp, info.deleted)


def split_key_value(schema: Schema) -> tuple[Schema, Schema]:
    """Return the schemas of key and value of a KeyValue schema; ValueError if its data or properties are invalid."""
    parts, position = [], 0
    for part in ("key", "value"):
        length = int.from_bytes(schema.data[position : position + 4], "big", signed=True)
        start = position + 4
        position = start + max(0, length)
        if position > len(schema.data):
            raise ValueError(f"the {part} schema of a KeyValue schema ends after its data")
        kind = schema.properties.get(f"{part}.schema.type", "BYTES")
        parts.append(Schema(type_of_name(kind), schema.data[start:position]))
    return parts[0], parts[1]


def type_of_name(name: str) -> SchemaType:
    """Return the type for a name in REST and properties; ValueError."""
    if name == "BYTES":
        return SchemaType.NONE
    try:
        return SchemaType[name]
    except KeyError as error:
        raise ValueError(
            f"{name!r} is not a schema type: use one of {', '.join(SchemaType.__members__)} or BYTES"
        ) from error
