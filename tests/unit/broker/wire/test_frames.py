"""Frames: golden bytes of stock clients and brokers, cuts at every byte, hand-read SENDs against generated classes."""

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.errors import PeerProtocolError
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.wire.frames import AckRun, FrameDecoder, MessageFrame, SendRun, encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "pulsar-wire"
FILES = sorted(GOLDEN.glob("*.txt"))
FRAME_MAX = 6_000_000
PING = bytes.fromhex("00000009000000050812920100")
SEND = bytes.fromhex(
    "0000002000000008" + "0806320408011000" + "0e01db048307" + "00000008" + "0a02703110001864" + "6869"
)


def frames_of(path: Path) -> list[bytes]:
    return [bytes.fromhex(line[2:]) for line in path.read_text().splitlines() if line[:2] in ("> ", "< ")]


def send_frame(entry: bytes = b"entry", **fields: Any) -> bytes:
    command = pb.BaseCommand(type=Kind.SEND, send=pb.CommandSend(**fields)).SerializeToString()
    return (4 + len(command) + len(entry)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + entry


def test_golden_files_exist() -> None:
    assert len(FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_golden_frame_parses_without_unknown_fields_and_encodes_to_the_same_bytes(path: Path) -> None:
    for raw in frames_of(path):
        size = int.from_bytes(raw[4:8], "big")
        command = pb.BaseCommand.FromString(raw[8 : 8 + size])
        assert len(UnknownFieldSet(command)) == 0
        name = command.DESCRIPTOR.fields_by_number[command.type].name
        assert command.HasField(name), "the sub-message has the number of the type"
        assert len(UnknownFieldSet(getattr(command, name))) == 0
        assert command.SerializeToString() == raw[8 : 8 + size]
        (frame,) = FrameDecoder(FRAME_MAX).feed(raw)
        if isinstance(frame, SendRun):
            (send,) = frame.sends
            assert bytes(send.entry) == raw[8 + size :]
            assert (frame.producer_id, send.sequence_id) == (command.send.producer_id, command.send.sequence_id)
        elif isinstance(frame, AckRun):
            assert frame.consumer_id == command.ack.consumer_id
            assert frame.entries == [(each.ledgerId, each.entryId) for each in command.ack.message_id]
        elif isinstance(frame, MessageFrame):
            assert bytes(frame.entry) == raw[8 + size :]
        else:
            assert encode(frame) == raw


@pytest.mark.parametrize("path", [GOLDEN / "send-unbatched.txt", GOLDEN / "message-metadata.txt"], ids=lambda p: p.stem)
def test_a_stream_cut_anywhere_gives_the_same_frames(path: Path) -> None:
    stream = b"".join(frames_of(path))
    whole = [repr_of(frame) for frame in flat(FrameDecoder(FRAME_MAX).feed(stream))]
    for cut in range(0, len(stream), 7):
        decoder = FrameDecoder(FRAME_MAX)
        frames = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
        assert [repr_of(frame) for frame in flat(frames)] == whole
        assert decoder.held_bytes == 0


def flat(frames: list[Any]) -> list[Any]:
    found: list[Any] = []
    for frame in frames:
        if isinstance(frame, SendRun):
            found += [(frame.producer_id, send) for send in frame.sends]
        elif isinstance(frame, AckRun):
            found += [AckRun(frame.consumer_id, [entry]) for entry in frame.entries]
        else:
            found.append(frame)
    return found


def repr_of(piece: Any) -> object:
    if isinstance(piece, tuple):
        producer_id, send = piece
        return producer_id, send[:5], bytes(send.entry)
    if isinstance(piece, AckRun):
        return piece
    if isinstance(piece, MessageFrame):
        return piece.command.SerializeToString(), bytes(piece.entry)
    return piece.SerializeToString()


def test_one_byte_at_a_time_gives_the_frame_at_its_last_byte() -> None:
    decoder = FrameDecoder(FRAME_MAX)
    for byte in SEND[:-1]:
        assert decoder.feed(bytes([byte])) == []
    (run,) = decoder.feed(SEND[-1:])
    assert isinstance(run, SendRun)
    assert bytes(run.sends[0].entry) == SEND[16:]


def test_the_vectors_of_the_spec() -> None:
    ping, run = FrameDecoder(FRAME_MAX).feed(PING + SEND)
    assert isinstance(ping, pb.BaseCommand)
    assert ping.type == Kind.PING
    assert encode(ping) == PING
    assert isinstance(run, SendRun)
    assert run.producer_id == 1
    assert run.sends[0][:5] == (0, None, 1, False, False)


def test_consecutive_sends_of_one_producer_are_one_run_and_views_of_one_buffer() -> None:
    stream = (
        b"".join(send_frame(b"a%d" % n, producer_id=4, sequence_id=n) for n in range(3))
        + send_frame(producer_id=5, sequence_id=0)
        + PING
        + send_frame(producer_id=5, sequence_id=1)
    )
    frames = FrameDecoder(FRAME_MAX).feed(stream)
    assert [len(frame.sends) if isinstance(frame, SendRun) else "ping" for frame in frames] == [3, 1, "ping", 1]
    assert isinstance(frames[0], SendRun)
    assert [bytes(send.entry) for send in frames[0].sends] == [b"a0", b"a1", b"a2"]
    assert all(send.entry.obj is stream for send in frames[0].sends)


@given(
    producer_id=st.integers(0, 2**40),
    sequence_id=st.integers(0, 2**63 - 1),
    extra=st.fixed_dictionaries(
        {},
        optional={
            "num_messages": st.integers(1, 100_000),
            "highest_sequence_id": st.integers(-1, 2**63 - 1),
            "is_chunk": st.booleans(),
            "marker": st.booleans(),
            "txnid_least_bits": st.integers(1, 2**64 - 1),
        },
    ),
)
def test_a_send_read_by_hand_equals_that_of_the_generated_class(
    producer_id: int, sequence_id: int, extra: dict[str, Any]
) -> None:
    frame = send_frame(b"x", producer_id=producer_id, sequence_id=sequence_id, **extra)
    (run,) = FrameDecoder(FRAME_MAX).feed(frame)
    assert isinstance(run, SendRun)
    assert run.producer_id == producer_id
    (send,) = run.sends
    assert send.sequence_id == sequence_id
    assert send.num_messages == extra.get("num_messages", 1)
    assert send.highest_sequence_id == extra.get("highest_sequence_id")
    assert send.is_chunk == extra.get("is_chunk", False)
    assert send.in_transaction == ("txnid_least_bits" in extra)


def test_a_send_with_a_nested_message_or_another_field_order_is_read_too() -> None:
    shadow = pb.CommandSend(producer_id=3, sequence_id=9, message_id=pb.MessageIdData(ledgerId=1, entryId=2))
    inner = shadow.SerializeToString()
    for body in (b"\x08\x06\x32" + bytes([len(inner)]) + inner, b"\x32" + bytes([len(inner)]) + inner + b"\x08\x06"):
        frame = (4 + len(body) + 1).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + b"e"
        (run,) = FrameDecoder(FRAME_MAX).feed(frame)
        assert isinstance(run, SendRun)
        assert (run.producer_id, run.sends[0].sequence_id, bytes(run.sends[0].entry)) == (3, 9, b"e")


@pytest.mark.parametrize(
    "raw",
    [
        bytes.fromhex("7fffffff00000000"),  # longer than any frame may be
        bytes.fromhex("0000000500000009") + b"x",  # command longer than its frame
        bytes.fromhex("00000002") + b"xy",  # too short for a command size
        bytes.fromhex("0000000900000005") + b"\xff" * 5,  # not a message
        bytes.fromhex("0000000600000002") + b"\x08\x06",  # SEND without its message
        bytes.fromhex("0000000a00000006") + b"\x08\x06\x32\x02\x08\x01",  # SEND without sequence id
        bytes.fromhex("0000000a00000006") + b"\x08\x06\x32\x02\x08\xff",  # varint without an end
        bytes.fromhex("0000000900000005") + b"\x08\x06\x32\x7f\x08",  # length beyond the command
        bytes.fromhex("0000000400000000"),  # no type
    ],
)
def test_malformed_frames_are_the_peers_fault(raw: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        FrameDecoder(FRAME_MAX).feed(raw)


def send_of(num_messages: int, *, unusual: bool) -> bytes:
    inner = pb.CommandSend(producer_id=3, sequence_id=9, num_messages=num_messages).SerializeToString()
    body = (b"\x32%b%b\x08\x06" if unusual else b"\x08\x06\x32%b%b") % (bytes([len(inner)]), inner)
    return (4 + len(body) + 1).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + b"e"


@pytest.mark.parametrize("unusual", [False, True])
def test_a_send_counts_as_many_messages_as_an_entry_can_hold(unusual: bool) -> None:
    for number, counted in ((0, 1), (1, 1), (2, 2), (BATCH_MESSAGES_MAX, BATCH_MESSAGES_MAX)):
        (run,) = FrameDecoder(FRAME_MAX).feed(send_of(number, unusual=unusual))
        assert isinstance(run, SendRun)
        assert run.sends[0].num_messages == counted
    for number in (-1, -(2**31), BATCH_MESSAGES_MAX + 1, 2**31 - 1):
        with pytest.raises(PeerProtocolError, match=f"SEND of {number} messages; num_messages is from 1 to 1048576"):
            FrameDecoder(FRAME_MAX).feed(send_of(number, unusual=unusual))


def test_a_frame_over_the_limit_is_refused_before_it_is_collected() -> None:
    with pytest.raises(PeerProtocolError, match="limit is 100"):
        FrameDecoder(100).feed((101).to_bytes(4, "big"))


@given(st.binary(max_size=200))
def test_any_bytes_either_parse_or_are_refused(data: bytes) -> None:
    try:
        frames = FrameDecoder(1000).feed(data)
    except PeerProtocolError:
        return
    assert isinstance(frames, list)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 200]),
            st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1)),
            st.one_of(st.none(), st.integers(1, 300)),
        ),
        max_size=12,
    )
)
def test_every_send_of_a_buffer_is_read_as_the_generated_class_reads_it(
    sends: list[tuple[int, int, int | None]],
) -> None:
    data = b""
    for producer_id, sequence_id, messages in sends:
        send = pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id)
        if messages is not None:
            send.num_messages = messages
        command = pb.BaseCommand(type=Kind.SEND, send=send).SerializeToString()
        data += (len(command) + 5).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + b"e"
    runs = FrameDecoder(1000).feed(data)
    read = [
        (run.producer_id, send.sequence_id, send.num_messages, send.highest_sequence_id, bytes(send.entry))
        for run in runs
        if isinstance(run, SendRun)
        for send in run.sends
    ]
    assert read == [(producer, sequence, messages or 1, None, b"e") for producer, sequence, messages in sends]


def ack_frame(consumer_id: int, *ids: tuple[int, int], **fields: Any) -> bytes:
    names = [pb.MessageIdData(ledgerId=ledger, entryId=entry) for ledger, entry in ids]
    ack = pb.CommandAck(consumer_id=consumer_id, ack_type=0, message_id=names)
    ack.MergeFrom(pb.CommandAck(**fields))
    return encode(pb.BaseCommand(type=Kind.ACK, ack=ack))


def test_consecutive_acks_of_whole_entries_by_one_consumer_are_one_run() -> None:
    stream = (
        ack_frame(4, (7, 1))
        + ack_frame(4, (7, 2), (8, 0))
        + ack_frame(5, (7, 3))
        + PING
        + ack_frame(5, (7, 4))
        + ack_frame(5, (7, 5), request_id=9)
    )
    first, second, ping, third, asked = FrameDecoder(FRAME_MAX).feed(stream)
    assert first == AckRun(4, [(7, 1), (7, 2), (8, 0)])
    assert (second, third) == (AckRun(5, [(7, 3)]), AckRun(5, [(7, 4)]))
    assert isinstance(ping, pb.BaseCommand) and ping.type == Kind.PING
    assert isinstance(asked, pb.BaseCommand) and asked.ack.request_id == 9
    for cut in range(len(stream)):
        decoder = FrameDecoder(FRAME_MAX)
        frames = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
        assert decoder.held_bytes == 0
        entries = [entry for frame in frames if isinstance(frame, AckRun) for entry in frame.entries]
        assert entries == [(7, 1), (7, 2), (8, 0), (7, 3), (7, 4)]


def test_an_ack_with_an_ack_set_or_of_another_kind_is_a_command() -> None:
    part, whole = pb.MessageIdData(ledgerId=7, entryId=1, ack_set=[5]), pb.MessageIdData(ledgerId=7, entryId=1)
    for ack in (
        pb.CommandAck(consumer_id=4, ack_type=0, message_id=[part]),
        pb.CommandAck(consumer_id=4, ack_type=1, message_id=[whole]),
        pb.CommandAck(consumer_id=4, ack_type=0, txnid_least_bits=1, message_id=[whole]),
    ):
        (frame,) = FrameDecoder(FRAME_MAX).feed(encode(pb.BaseCommand(type=Kind.ACK, ack=ack)))
        assert isinstance(frame, pb.BaseCommand)
        assert frame.ack == ack
