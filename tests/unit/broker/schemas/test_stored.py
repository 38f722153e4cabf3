"""The stored format: stored schemas of a stock broker can be read, and ours are byte for byte the same."""

import re
from pathlib import Path

import pytest

from quire_bookie.errors import MetadataFormatError
from quire_broker.names import parse_topic
from quire_broker.schemas.stored import (
    Location,
    Schema,
    SchemaType,
    StoredSchema,
    decode_entry,
    decode_locator,
    encode_entry,
    encode_locator,
    schema_id,
    type_of_name,
)

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "etcd" / "pulsar-broker.txt"


def golden_locator() -> bytes:
    """Return a stock broker's value under /schemas for the topic of topic policies."""
    text = GOLDEN.read_text().split("KEY /schemas/public/default/__change_events", 1)[1].split("\nKEY ", 1)[0]
    lines = re.findall(r"^  [0-9a-f]{4}  ((?:[0-9a-f]{2} )+)", text, re.MULTILINE)
    return bytes.fromhex("".join(lines))


def test_the_locator_of_a_stock_broker_is_read_and_written_identically() -> None:
    stored = golden_locator()
    (location,) = decode_locator("/schemas/x", stored)
    assert (location.version, location.ledger_id, location.entry_id) == (0, 3, 0)
    assert encode_locator([location]) == stored


@pytest.mark.parametrize("kind", [kind for kind in SchemaType if kind is not SchemaType.AUTO_CONSUME])
def test_entries_of_every_type_can_be_read_back(kind: SchemaType) -> None:
    stored = StoredSchema(4, Schema(kind, b"data", {"a": "b"}), 17, kind is SchemaType.NONE)
    before = [Location(3, 9, 0, b"h")]
    assert decode_entry(4, encode_entry("t/n/x", stored, before)) == stored


def test_garbage_is_a_format_error() -> None:
    with pytest.raises(MetadataFormatError, match="/schemas/x"):
        decode_locator("/schemas/x", b"\xff\xff")
    with pytest.raises(MetadataFormatError, match="version 3"):
        decode_entry(3, b"\x01\x02")


def test_partitions_share_a_key_and_names_are_encoded() -> None:
    assert schema_id(parse_topic("persistent://t/n/a b-partition-3")) == "t/n/a+b"


def test_names_of_types() -> None:
    assert type_of_name("BYTES") is SchemaType.NONE
    with pytest.raises(ValueError, match="'NOPE' is not a schema type"):
        type_of_name("NOPE")
