"""Decodes payloads of primitive schemas, which are big-endian like in Java. Source: Pulsar's schema classes.

Times of day are numbers (TIME: ms, LOCAL_TIME: ns since midnight), because Spark has no type for them.
"""

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from quire_broker.schemas.stored import SchemaType

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  a local time has no zone
_DAY_ZERO = date(1970, 1, 1)
_UTC_TIME = pa.timestamp("us", tz="UTC")


def _packed(layout: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(layout).unpack
    return lambda payload: unpack(payload)[0]


def _flag(payload: bytes) -> bool:
    if len(payload) != 1:
        raise ValueError(f"a boolean of {len(payload)} bytes")
    return payload != b"\0"


def _milliseconds(payload: bytes) -> datetime:
    return _EPOCH + timedelta(milliseconds=struct.unpack(">q", payload)[0])


def _instant(payload: bytes) -> datetime:
    seconds, nanos = struct.unpack(">qi", payload)
    return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)


def _local_date(payload: bytes) -> date:
    return _DAY_ZERO + timedelta(days=struct.unpack(">q", payload)[0])


def _local_date_time(payload: bytes) -> datetime:
    day, nanos = struct.unpack(">qq", payload)
    return _LOCAL_EPOCH + timedelta(days=day, microseconds=nanos // 1000)


PRIMITIVES: dict[SchemaType, tuple[pa.DataType, Callable[[bytes], Any]]] = {
    SchemaType.NONE: (pa.binary(), bytes),
    SchemaType.STRING: (pa.string(), lambda payload: payload.decode()),
    SchemaType.BOOLEAN: (pa.bool_(), _flag),
    SchemaType.INT8: (pa.int8(), _packed(">b")),
    SchemaType.INT16: (pa.int16(), _packed(">h")),
    SchemaType.INT32: (pa.int32(), _packed(">i")),
    SchemaType.INT64: (pa.int64(), _packed(">q")),
    SchemaType.FLOAT: (pa.float32(), _packed(">f")),
    SchemaType.DOUBLE: (pa.float64(), _packed(">d")),
    SchemaType.DATE: (_UTC_TIME, _milliseconds),
    SchemaType.TIME: (pa.int64(), _packed(">q")),
    SchemaType.TIMESTAMP: (_UTC_TIME, _milliseconds),
    SchemaType.INSTANT: (_UTC_TIME, _instant),
    SchemaType.LOCAL_DATE: (pa.date32(), _local_date),
    SchemaType.LOCAL_TIME: (pa.int64(), _packed(">q")),
    SchemaType.LOCAL_DATE_TIME: (pa.timestamp("us"), _local_date_time),
}
"""Arrow type and reader of each primitive type."""
