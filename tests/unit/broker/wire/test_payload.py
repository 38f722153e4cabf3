"""Messages of entries that the stock client wrote, in every compression."""

from pathlib import Path

import pytest

from quire_bookie.errors import PeerProtocolError
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import FrameDecoder, SendRun
from quire_broker.wire.payload import batch_of, messages_of
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "pulsar-wire"


def entries(name: str) -> list[bytes]:
    """Return the entries that the client sent in a recorded scenario."""
    found = []
    for line in (GOLDEN / f"{name}.txt").read_text().splitlines():
        if line.startswith("> "):
            for frame in FrameDecoder(1 << 24).feed(bytes.fromhex(line[2:])):
                if isinstance(frame, SendRun):
                    found += [bytes(send.entry) for send in frame.sends]
    return found


@pytest.mark.parametrize("codec", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_a_batch_of_five_and_a_batch_of_one_are_unpacked(codec: str) -> None:
    batches = [messages_of(entry) for entry in entries(f"send-batched-{codec}")]
    assert [len(batch) for batch in batches] == [5, 1]
    assert [message.batch_index for message in batches[0]] == [0, 1, 2, 3, 4]
    assert [message.sequence_id for message in batches[0]] == [0, 1, 2, 3, 4]


def test_compressed_single_messages_are_read_as_sent() -> None:
    found = [messages_of(entry)[0] for entry in entries("send-compressed-unbatched")]
    assert [message.payload for message in found] == [b"abcdefghij" * 30] * 4


def test_keys_properties_and_event_times_are_found_in_and_out_of_batches() -> None:
    single: list[object] = []
    batched: list[object] = []
    for entry in entries("message-metadata"):
        for message in messages_of(entry):
            (single if message.batch_index < 0 else batched).append(
                (message.key, message.properties, message.payload, message.event_time_ms)
            )
    assert single == batched
    assert single[0] == ("key-1", {"x": "1", "y": "zwei"}, b"k", 1_700_000_000_123)
    assert single[2] == (None, {}, b"dis", None)


def test_chunks_name_the_message_they_belong_to() -> None:
    *chunks, small = [messages_of(entry)[0] for entry in entries("chunked")]
    assert [(message.chunk_id, message.num_chunks) for message in chunks] == [(0, 3), (1, 3), (2, 3)]
    assert len({message.uuid for message in chunks}) == 1
    assert b"".join(message.payload for message in chunks) == bytes((7 * i + 3) % 256 for i in range(60_000))
    assert small.uuid is None


def test_a_payload_that_cannot_be_unpacked_is_refused() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=2)
    with pytest.raises(PeerProtocolError, match="message 0 of a batch of 2"):
        messages_of(seal(metadata, b"\x00\x00"))
    single = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=1, uncompressed_size=10)
    with pytest.raises(PeerProtocolError, match="cannot be decompressed"):
        messages_of(seal(single, b"\xff\xff\xff"))


@pytest.mark.parametrize("key", [None, "", "k"])
def test_a_batch_that_we_pack_is_unpacked_as_it_was(key: str | None) -> None:
    payloads = [b"", b"one", b"\x00" * 300]
    metadata = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1, num_messages_in_batch=3)
    found = messages_of(seal(metadata, batch_of(payloads, key=key, properties={"a": "b"})))
    assert [(one.payload, one.key, one.properties, one.sequence_id) for one in found] == [
        (payload, key, {"a": "b"}, 7 + index) for index, payload in enumerate(payloads)
    ]
