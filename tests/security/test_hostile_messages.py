"""What a producer can put into entries, schemas and payloads, as Spark jobs decode it.

None of it ends a job or takes memory without bound: it becomes a row with `_error`, or a version that is not used.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from decimal import Context
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from quire_bookie.errors import PeerProtocolError
from quire_broker.compression import PLAIN_BYTES_MAX
from quire_broker.schemas.stored import Schema, SchemaType
from quire_broker.wire.entry import seal
from quire_broker.wire.payload import messages_of
from quire_broker.wire.proto.pulsar_pb2 import SingleMessageMetadata
from quire_jobs.decode.chunks import Chunks, nothing_earlier
from quire_jobs.decode.messages import BATCH_BYTES_MAX, MessageDecoder
from quire_jobs.decode.payloads import PayloadDecoder
from quire_jobs.decode.table import TableDecoder, plan_table
from tests.unit.jobs.decode.test_messages import COMPRESS, as_batch, batch_of, decode, metadata
from tests.unit.jobs.decode.test_table import KEY, TOPIC, messages, record

ONE = batch_of([(SingleMessageMetadata(), b"")])


def packed(count: int, codec: int, body: bytes, **fields: Any) -> bytes:
    """Return an entry that claims to be a batch of `count` messages."""
    made = metadata(num_messages_in_batch=count, compression=codec, uncompressed_size=len(body), **fields)
    return seal(made, COMPRESS[codec](body))


def chunk(index: int, count: int, data: bytes = b"", uuid: str = "u") -> bytes:
    return seal(metadata(uuid=uuid, chunk_id=index, num_chunks_from_msg=count), data)


def sizes(entries: Sequence[bytes]) -> tuple[int, int]:
    """Return the rows of these entries, and the bytes of their largest batch."""
    rows = largest = 0
    for batch in MessageDecoder().messages(as_batch(entries)):
        rows, largest = rows + len(batch), max(largest, batch.nbytes)
    return rows, largest


def test_a_batch_that_repeats_a_long_producer_name_comes_in_parts() -> None:
    entry = packed(2_000, 3, ONE * 2_000, producer_name="p" * 100_000)
    assert len(entry) < 110_000, "200 MB in Arrow"
    rows, largest = sizes([entry])
    assert rows == 2_000
    assert largest < 2 * BATCH_BYTES_MAX


def test_a_batch_of_messages_without_content_comes_in_parts() -> None:
    rows, largest = sizes([packed(300_000, 3, bytes(4 * 300_000))])
    assert rows == 300_000
    assert largest < 3 * BATCH_BYTES_MAX, "a row has more columns than its size counts"


@pytest.mark.parametrize("count", [-5, 0, 2, 2**31 - 1])
def test_a_batch_that_lies_about_its_count_gives_a_row_with_the_reason(count: int) -> None:
    found = decode([packed(count, 0, ONE), seal(metadata(), b"next")])
    assert found[-1]["payload"] == b"next"
    assert all(row["_error"] for row in found[1:-1]), found
    assert len(found) <= 3


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1])
def test_a_message_of_a_batch_that_lies_about_its_size_is_not_read_again(size: int) -> None:
    head = SingleMessageMetadata(payload_size=size).SerializeToString()
    entry = packed(2**20, 0, len(head).to_bytes(4, "big") + head)
    [row] = decode([entry])
    assert "message 0 of a batch" in row["_error"]
    with pytest.raises(PeerProtocolError, match="message 0 of a batch"):
        messages_of(entry)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("said", [0, 10, PLAIN_BYTES_MAX, PLAIN_BYTES_MAX + 1, 2**32 - 1])
def test_a_payload_that_lies_about_its_plain_size_is_not_inflated_beyond_it(codec: int, said: int) -> None:
    bomb = COMPRESS[codec](bytes(1 << 20))
    [row] = decode([seal(metadata(compression=codec, uncompressed_size=said), bomb)])
    assert row["_error"].startswith("cannot be decompressed"), row["_error"]
    assert row["payload"] == bomb


@pytest.mark.parametrize("codec", [5, 99, 2**31 - 1, -1])
def test_an_unknown_compression_gives_a_row_with_the_reason(codec: int) -> None:
    try:
        made = metadata(compression=codec)
    except ValueError:  # the enum of the descriptor is closed: such a number reaches us as an unknown field
        return
    [row] = decode([seal(made, b"x")])
    assert row["_error"]


def test_chunks_that_differ_in_their_count_are_no_message() -> None:
    [row] = decode([chunk(5, 100), chunk(6, 100), chunk(2, 3)])
    assert "does not contain chunk 0 of 3" in row["_error"]


def test_chunks_of_another_index_before_the_range_are_not_used() -> None:
    earlier = [(-1, b"x"), (7, b"y")]
    error = Chunks().add(("p", "u"), 2, 3, b"2", lambda: earlier)
    assert isinstance(error, str)


def test_chunks_before_the_range_count_towards_the_limit() -> None:
    earlier = ((index, bytes(10)) for index in range(98, -1, -1))
    error = Chunks(bytes_max=500).add(("p", "u"), 99, 100, b"", lambda: earlier)
    assert isinstance(error, str)
    assert "more than 500 bytes" in error


def test_chunks_that_never_end_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_jobs.decode.chunks.PARTS_MAX", 100)
    chunks = Chunks()
    for index in range(10_000):
        assert chunks.add(("p", f"{index // 90}"), index % 90, 2**31 - 1, b"", nothing_earlier) is None
        assert len(chunks) <= 2, "empty chunks cost memory as well"
    for index in range(3_000):
        chunks.add(("p", f"{index}" + "u" * 1_000), 0, 2, b"x", nothing_earlier)
    assert len(chunks) <= 100
    assert chunks.size_bytes <= 100


def nested(levels: int) -> Any:
    found: Any = "int"
    for _ in range(levels):
        found = {"type": "array", "items": found}
    return found


def doubled(levels: int) -> Any:
    """A schema of a line a level, each of which has the next one twice: 2 ** levels columns."""
    found: Any = {"type": "record", "name": f"R{levels}", "fields": [{"name": "v", "type": "int"}]}
    for level in range(levels - 1, -1, -1):
        fields = [{"name": "a", "type": found}, {"name": "b", "type": f"R{level + 1}"}]
        found = {"type": "record", "name": f"R{level}", "fields": fields}
    return found


def items(of: Any) -> Any:
    return {"type": "array", "items": of}


EMPTY_RECORD = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (doubled(40), "more than 20000 fields"),
        (nested(100), "nested more than 64 levels"),
        (nested(900), "nested more than 64 levels"),
        ({**DECIMAL, "scale": 10**30}, "scale"),
        ({**DECIMAL, "scale": -1}, "scale"),
        ({**DECIMAL, "precision": "x"}, "not an Avro schema"),
        ("Unknown", "not an Avro schema: Unknown"),
        ({"type": "record", "name": "I", "fields": [{"name": "d", "type": t} for t in ("int", "string")]}, "one name"),
        ("R", "contains itself"),
    ],
)
def test_a_hostile_avro_schema_is_not_used(kind: SchemaType, shape: Any, reason: str) -> None:
    good = record(("a", "int"), kind=kind)
    plan = plan_table({KEY: {0: good, 1: record(("a", shape), kind=kind)}})
    assert reason in plan.unusable[KEY, 1], plan.unusable
    assert [field.name for field in plan.fields] == ["a"]
    rows = TableDecoder(plan).rows(messages((1, b"\0"))).to_pylist()
    assert reason in rows[0]["_error"]
    assert rows[0]["_payload"] == b"\0"


@pytest.mark.parametrize(
    "of",
    ["null", EMPTY_RECORD, {"type": "fixed", "name": "F", "size": 0}, {"type": "record", "name": "E", "fields": []}],
)
def test_an_array_of_nothing_is_not_read(of: Any) -> None:
    with pytest.raises(ValueError, match="take no bytes"):
        PayloadDecoder(record(("a", items(of))))
    assert PayloadDecoder(record(("a", items(of)), kind=SchemaType.JSON)).row(b'{"a":[]}', None) == {"a": []}


def described(*kinds: DescriptorProto, root: str = "p.M") -> Schema:
    files = FileDescriptorSet(file=[FileDescriptorProto(name="f", package="p", syntax="proto3", message_type=kinds)])
    encoded = b64encode(files.SerializeToString()).decode()
    data = {"fileDescriptorSet": encoded, "rootMessageTypeName": root, "rootFileDescriptorName": "f"}
    return Schema(SchemaType.PROTOBUF_NATIVE, json.dumps(data).encode())


def of_kinds(name: str, *kinds: str) -> DescriptorProto:
    fields = [
        FieldDescriptorProto(
            name=f"f{at}",
            number=at + 1,
            type=FieldDescriptorProto.TYPE_MESSAGE,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            type_name=kind,
        )
        for at, kind in enumerate(kinds)
    ]
    return DescriptorProto(name=name, field=fields)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (
            described(
                of_kinds("M", ".p.M0", ".p.M0"),
                *(of_kinds(f"M{at}", *2 * [f".p.M{at + 1}"]) for at in range(40)),
                of_kinds("M40"),
            ),
            "more than 20000 fields",
        ),
        (described(of_kinds("M", ".p.M")), "contains itself"),
        (described(of_kinds("M"), root="p.X"), "p.X"),
        (Schema(SchemaType.PROTOBUF_NATIVE, b"[" * 100_000), "recursion"),
        (Schema(SchemaType.PROTOBUF_NATIVE, b"[]"), "not a native Protobuf schema"),
        (Schema(SchemaType.KEY_VALUE, b"\0\0\0\x09"), "ends after its data"),
        (Schema(SchemaType.KEY_VALUE, bytes(8), {"key.schema.type": "KEY_VALUE"}), "KEY_VALUE"),
        (Schema(SchemaType.AUTO_CONSUME, b""), "AUTO_CONSUME"),
        (Schema(SchemaType.AVRO, b"[" * 100_000), "not an Avro schema"),
        (Schema(SchemaType.AVRO, b"\xff"), "not an Avro schema"),
    ],
)
def test_another_hostile_schema_is_not_used(schema: Schema, reason: str) -> None:
    plan = plan_table({KEY: {0: record(("a", "int")), 1: schema}})
    assert reason in plan.unusable[KEY, 1]


def zigzag(number: int) -> bytes:
    number, out = (number << 1) ^ (number >> 63), b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


@pytest.mark.parametrize(
    ("shape", "payload"),
    [
        (items("int"), zigzag(2**60) + b"\0"),
        (items("int"), zigzag(-(2**62)) + zigzag(1) + b"\0"),
        ("string", zigzag(2**60) + b"abc"),
        ("string", zigzag(-2) + b"abc"),
        ("bytes", zigzag(2**62) + b"abc"),
        ({"type": "fixed", "name": "F", "size": 2**62}, b"abc"),
        ({"type": "fixed", "name": "F", "size": -5}, b"abc"),
        (items({"type": "fixed", "name": "F", "size": -5}), zigzag(2**40)),
        ("long", b"\xff" * 100_000),
        (["null", "int"], zigzag(500)),
        ({"type": "int", "logicalType": "date"}, zigzag(2**31 - 1)),
        ({"type": "long", "logicalType": "timestamp-millis"}, zigzag(2**63 - 1)),
        (DECIMAL, zigzag(1_000_000) + b"\x7f" * 1_000_000),
        (DECIMAL, zigzag(60) + b"\x7f" * 60),
    ],
)
def test_a_hostile_avro_payload_gives_a_row_with_the_reason(shape: Any, payload: bytes) -> None:
    assert_only_the_second_fails(record(("a", shape)), payload)


@pytest.mark.parametrize(
    ("shape", "payload"),
    [
        ("string", b'{"a":' + b"[" * 100_000),
        ("long", b'{"a":' + b"9" * 5_000 + b"}"),
        ("long", b'{"a":' + b"9" * 4_000 + b"}"),
        ("string", b'{"a":"\\ud800"}'),
        ({"type": "map", "values": "int"}, b'{"a":{"\\ud800":1}}'),
        ({"type": "map", "values": "int"}, b'{"a":[1]}'),
        ({"type": "long", "logicalType": "timestamp-millis"}, b'{"a":1e300}'),
        (DECIMAL, b'{"a":"1e999999999"}'),
        (DECIMAL, b'{"a":"1e-999999999"}'),  # it ended the process: pyarrow writes out of its memory
        (DECIMAL, b'{"a":"NaN"}'),
        (DECIMAL, b'{"a":"Infinity"}'),
        (DECIMAL, b'{"a":0.001}'),
        ("int", b"[]"),
    ],
)
def test_a_hostile_json_payload_gives_a_row_with_the_reason(shape: Any, payload: bytes) -> None:
    assert_only_the_second_fails(record(("a", shape), kind=SchemaType.JSON), payload)


def assert_only_the_second_fails(schema: Schema, payload: bytes) -> None:
    good = record(("b", "int"))
    plan = plan_table({KEY: {0: good, 1: schema}})
    first, second, third = TableDecoder(plan).rows(messages((0, b"\2"), (1, payload), (0, b"\4"))).to_pylist()
    assert (first["b"], first["_error"], third["b"], third["_error"]) == (1, None, 2, None)
    assert second["_error"] and second["a"] is None
    assert second["_payload"] == payload


def test_decimals_of_both_kinds_are_exact() -> None:
    avro, text = (PayloadDecoder(record(("a", DECIMAL), kind=kind)) for kind in (SchemaType.AVRO, SchemaType.JSON))
    most = 10**38 - 1
    raw = most.to_bytes(16, "big")
    for number, payload in ((most, raw), (-most, (-most).to_bytes(16, "big", signed=True)), (-150, b"\xff\x6a")):
        exact = avro.row(zigzag(len(payload)) + payload, None)["a"]
        assert int(exact.scaleb(2, Context(prec=40))) == number
        assert text.row(json.dumps({"a": str(exact)}).encode(), None)["a"] == exact
    assert str(text.row(b'{"a":1.5000}', None)["a"]) == "1.50"


@pytest.mark.parametrize("version", [b"", b"\0", b"\x7f" * 5_000])
def test_a_schema_version_of_any_size_gives_a_row_with_the_reason(version: bytes) -> None:
    plan = plan_table({KEY: {0: record(("a", "int"))}})
    batch = messages((0, b"\2"))
    at = batch.schema.get_field_index("schema_version")
    odd = batch.set_column(at, batch.schema.field(at), pa.array([version], pa.binary()))
    [row] = TableDecoder(plan).rows(odd).to_pylist()
    assert "schema version" in row["_error"]


def test_versions_that_do_not_exist_are_not_kept_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_jobs.decode.table._DECODERS_MAX", 10)
    decoder = TableDecoder(plan_table({KEY: {0: record(("a", "int"))}}))
    rows = decoder.rows(messages(*((number, b"\2") for number in range(1_000)))).to_pylist()
    assert rows[0]["a"] == 1
    assert all("did not exist" in row["_error"] for row in rows[1:])
    assert len(decoder._decoders) <= 10
    assert rows[0]["_topic"] == TOPIC
