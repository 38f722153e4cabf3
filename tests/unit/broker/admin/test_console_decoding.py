"""How the web console shows payloads by their schemas: its own code in Node, with payloads of stock encoders."""

import base64
import io
import json
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

CONSOLE = Path(__file__).resolve().parents[4] / "console"
ESBUILD = CONSOLE / "node_modules" / ".bin" / "esbuild"
pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not ESBUILD.exists(), reason="no Node, or no packages of console/: make console"
)
RUN = """
import { decode } from "./decode.mjs";
import { readFileSync } from "node:fs";
const { payload, schema } = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(decode(Uint8Array.from(Buffer.from(payload, "base64")), schema ?? undefined)));
"""
Shown = Callable[[bytes, dict[str, Any]], dict[str, str]]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Return the console's function that decodes a payload by a schema."""
    folder = tmp_path_factory.mktemp("decode")
    bundle = [str(ESBUILD), "src/decode.ts", "--bundle", "--format=esm", f"--outfile={folder / 'decode.mjs'}"]
    subprocess.run(bundle, cwd=CONSOLE, check=True, capture_output=True, timeout=120)
    (folder / "run.mjs").write_text(RUN)

    def run(payload: bytes, schema: dict[str, Any]) -> dict[str, str]:
        case = {"payload": base64.b64encode(payload).decode(), "schema": {"version": 3, "properties": {}, **schema}}
        done = subprocess.run(
            ["node", "run.mjs"], cwd=folder, input=json.dumps(case).encode(), capture_output=True, timeout=120
        )
        assert done.returncode == 0, done.stderr.decode()
        found: dict[str, str] = json.loads(done.stdout)
        return found

    return run


def order_files() -> list[descriptor_pb2.FileDescriptorProto]:
    """Return the file of a message and the one that it imports, in this order: before what it imports."""
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=[stamp.name]
    )
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    message.field.add(name="who", number=2, type=kinds.TYPE_STRING, label=kinds.LABEL_REPEATED)
    message.field.add(
        name="at",
        number=3,
        type=kinds.TYPE_MESSAGE,
        label=kinds.LABEL_OPTIONAL,
        type_name=".google.protobuf.Timestamp",
    )
    return [file, stamp]


def native(files: list[descriptor_pb2.FileDescriptorProto], name: str = "shop.Order") -> dict[str, Any]:
    """Return a schema as Java clients register it."""
    described = descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
    data = {"fileDescriptorSet": base64.b64encode(described).decode(), "rootMessageTypeName": name}
    return {"type": "PROTOBUF_NATIVE", "data": json.dumps(data | {"rootFileDescriptorName": "order.proto"})}


def order() -> bytes:
    """Return a message of `order_files`."""
    pool = DescriptorPool()
    for file in reversed(order_files()):
        pool.Add(file)
    kind: Any = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    found = kind(id=2**60, who=["Ada", "Grace"])
    found.at.seconds = 1
    data: bytes = found.SerializeToString()
    return data


def test_protobuf_is_decoded_by_the_descriptors_of_its_schema_in_any_order(shown: Shown) -> None:
    for files in (order_files(), order_files()[::-1]):
        found = shown(order(), native(files))
        assert found["how"] == "PROTOBUF_NATIVE, version 3"
        assert json.loads(found["text"]) == {"id": str(2**60), "who": ["Ada", "Grace"], "at": "1970-01-01T00:00:01Z"}


@pytest.mark.parametrize(
    ("payload", "schema", "reason"),
    [
        (b"\x0a\xff", native(order_files()), "not PROTOBUF_NATIVE: "),
        (order(), native(order_files(), "shop.None"), "does not describe its message shop.None"),
        (order(), native(order_files()[:1]), "not PROTOBUF_NATIVE: "),
        (order(), {"type": "PROTOBUF_NATIVE", "data": "{"}, "not PROTOBUF_NATIVE: "),
        (order(), {"type": "PROTOBUF", "data": "{}"}, "no descriptors"),
    ],
    ids=["damaged", "unknown message", "missing import", "no JSON", "without descriptors"],
)
def test_a_payload_that_its_schema_does_not_decode_is_shown_as_it_is(
    shown: Shown, payload: bytes, schema: dict[str, Any], reason: str
) -> None:
    found = shown(payload, schema)
    assert reason in found["how"] and found["text"].startswith("0000  ")


def test_avro_and_key_value_are_decoded(shown: Shown) -> None:
    record = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "tags", "type": {"type": "map", "values": "long"}}],
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(record), {"tags": {"a": -3, "b": 2**40}})
    avro = stream.getvalue()
    assert json.loads(shown(avro, {"type": "AVRO", "data": json.dumps(record)})["text"]) == {
        "tags": {"a": -3, "b": 2**40}
    }
    both = struct.pack(">i", 3) + b"key" + struct.pack(">i", len(order())) + order()
    pair = {
        "type": "KEY_VALUE",
        "data": json.dumps({"key": "", "value": native(order_files())["data"]}),
        "properties": {"key.schema.type": "STRING", "value.schema.type": "PROTOBUF_NATIVE"},
    }
    text = shown(both, pair)["text"]
    assert text.startswith("key: key\nvalue: {") and '"Grace"' in text
