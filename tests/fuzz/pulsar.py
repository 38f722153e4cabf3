"""Sessions of the Pulsar protocol: a valid opening, then commands with odd fields, in any order, some damaged.

Fields come from the descriptors, so that a new command or field is sent without an entry here.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from quire_bookie.crc import crc32c
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.fuzz.values import NUMBERS, damaged, fill, odd_texts

NAMESPACE = "fuzz/ns"
TOPIC = f"persistent://{NAMESPACE}/t"
_ids = st.sampled_from((*[1] * 20, 0, 2, 3, 2**63 - 1, 2**64 - 1))
TOPICS = (TOPIC, f"persistent://{NAMESPACE}/p", f"persistent://{NAMESPACE}/p-partition-0")
_topics = st.sampled_from((TOPIC, *TOPICS, "t"))
_counts = st.sampled_from([number for number in NUMBERS if -(2**31) <= number < 2**31])
POOLS: dict[str, st.SearchStrategy[Any]] = {
    "topic": _topics | _topics | odd_texts,
    "namespace": st.just(NAMESPACE) | odd_texts,
    "subscription": st.sampled_from(("s", "s", "s2")) | odd_texts,
    "producer_id": _ids,
    "consumer_id": _ids,
    "request_id": _ids,
    "protocol_version": _counts,
    "producer_name": st.sampled_from(("fuzz", "other")) | odd_texts,
    "ack_set": st.sampled_from((0, 1, -1, 2**63 - 1, -(2**63))),
    "regexp": odd_texts,
    "topics_pattern": st.sampled_from((".*", "(a+)+$", "persistent://fuzz/ns/.*", "[")) | odd_texts,
    "num_messages": st.sampled_from((1, 1, 1, 2, 3, 0, -1, 2**20, 2**31 - 1)),
    "messagePermits": st.sampled_from((1, 10, 1000, 0, 2**31 - 1, 2**32 - 1)),
    "ledgerId": st.sampled_from((0, 1, 2, 3, 4, 5, 6, 7, 8, 2**63 - 1, 2**64 - 1)),
    "entryId": st.sampled_from((0, 1, 2, 3, 5, 100, 2**63 - 1, 2**64 - 1)),
}


@dataclass(frozen=True)
class Session:
    """The frames of one client. `opening`: each is sent after the response to its predecessor; `rest`: sent at once.

    `waits`: whether the client waits for the receipt of a last SEND, so that earlier messages are stored and
    dispatched.
    """

    opening: tuple[pb.BaseCommand, ...]
    rest: tuple[bytes, ...]
    waits: bool = False


_times = st.sampled_from((0, 1, 2**40, 2**63 - 1))
_METADATA: dict[str, st.SearchStrategy[Any]] = {
    "partition_key": st.sampled_from(("k", "", "k" * 300)) | odd_texts,
    "ordering_key": st.binary(max_size=9),
    "num_messages_in_batch": st.sampled_from((1, 2, 3, 64, 65, 1000, 0, -1, 2**20, 2**31 - 1)),
    "compression": st.integers(0, 4),
    "uncompressed_size": st.sampled_from((0, 1, 30, 2**31, 2**32 - 1)),
    "deliver_at_time": _times,
    "event_time": _times,
    "publish_time": _times,
    "txnid_least_bits": _ids,
    "txnid_most_bits": _ids,
    "total_chunk_msg_size": st.sampled_from((0, 1, -1, 2**31 - 1)),
    "num_chunks_from_msg": st.sampled_from((0, 1, 2, -1, 2**31 - 1)),
    "chunk_id": st.sampled_from((0, 1, -1, 2**31 - 1)),
}


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Return the bytes after the command of a SEND: metadata with any fields or undecodable ones, and a payload."""
    metadata = pb.MessageMetadata(producer_name="fuzz", sequence_id=draw(st.integers(0, 9)), publish_time=1)
    if draw(st.booleans()):
        draw(fill(metadata, _METADATA))
    payload = draw(st.binary(max_size=30))
    kind = draw(st.integers(0, 7))
    if kind > 3:
        return seal(metadata, payload)
    plain = metadata.SerializeToString() if kind else draw(st.binary(max_size=20))
    body = len(plain).to_bytes(4, "big") + plain + payload
    if kind == 1:
        return draw(damaged(seal(metadata, payload)))
    if kind == 2:
        return body  # without a checksum
    return b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + (body if kind else draw(damaged(body)))


@st.composite
def commands(draw: st.DrawFn, kinds: st.SearchStrategy[Kind]) -> pb.BaseCommand:
    """Return a command with fields of the right types."""
    kind = draw(kinds)
    found = pb.BaseCommand(type=kind)
    inner = getattr(found, pb.BaseCommand.DESCRIPTOR.fields_by_number[kind].name)
    inner.SetInParent()
    draw(fill(inner, POOLS))
    return found


def with_entry(command: pb.BaseCommand, entry: bytes) -> bytes:
    """Return the frame of a command with a payload."""
    body = command.SerializeToString()
    return (4 + len(body) + len(entry)).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body + entry


USUAL = (
    *(Kind.SEND, Kind.SEND, Kind.ACK, Kind.ACK, Kind.FLOW, Kind.FLOW, Kind.REDELIVER, Kind.SEEK, Kind.PRODUCER),
    *(Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.GET_LAST_MESSAGE_ID, Kind.CLOSE_CONSUMER, Kind.CLOSE_PRODUCER),
    *(Kind.LOOKUP, Kind.PARTITIONED_METADATA, Kind.GET_OR_CREATE_SCHEMA, Kind.GET_SCHEMA, Kind.CONSUMER_STATS),
    *(Kind.GET_TOPICS_OF_NAMESPACE, Kind.WATCH_TOPIC_LIST, Kind.WATCH_TOPIC_LIST_CLOSE, Kind.NEW_TXN, Kind.END_TXN),
)
"""Kinds that a connection survives."""


@st.composite
def frames(draw: st.DrawFn, kinds: st.SearchStrategy[Kind], *, whole: bool) -> bytes:
    """Return one frame of these kinds."""
    command = draw(commands(kinds))
    if command.type == Kind.SEND and draw(st.integers(0, 3)):
        send = pb.CommandSend(producer_id=1, sequence_id=draw(st.integers(0, 5)), num_messages=draw(st.integers(1, 3)))
        command = pb.BaseCommand(type=Kind.SEND, send=send)
    has_entry = command.type in (Kind.SEND, Kind.MESSAGE)
    frame = with_entry(command, draw(entries())) if has_entry else encode(command)
    return frame if whole or draw(st.integers(0, 6)) else draw(damaged(frame))


def opening(subscription_type: int, mark: bool, consumer_first: bool) -> tuple[pb.BaseCommand, ...]:
    """Return CONNECT, a producer and a consumer."""
    producer = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
    subscribe = pb.CommandSubscribe(
        topic=TOPIC,
        subscription=f"s{subscription_type}",
        subType=subscription_type,
        consumer_id=1,
        request_id=2,
        initialPosition=1,  # from the first message
        durable=mark,
    )
    both = (
        pb.BaseCommand(type=Kind.PRODUCER, producer=producer),
        pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=subscribe),
    )
    connect = pb.BaseCommand(type=Kind.CONNECT, connect=pb.CommandConnect(client_version="fuzz", protocol_version=21))
    return (connect, *(reversed(both) if consumer_first else both))


_whole_openings = st.builds(opening, st.integers(0, 3), st.booleans(), st.booleans())
_openings = st.one_of(st.just(()), st.builds(lambda one: (one,), commands(st.just(Kind.CONNECT))), _whole_openings)
PING = pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing())
LAST_SEQUENCE_ID = 10**6


def last_send() -> bytes:
    """Return permits for all remaining messages, and a last SEND."""
    metadata = pb.MessageMetadata(producer_name="fuzz", sequence_id=LAST_SEQUENCE_ID, publish_time=1)
    send = pb.CommandSend(producer_id=1, sequence_id=LAST_SEQUENCE_ID)
    flow = pb.CommandFlow(consumer_id=1, messagePermits=100)
    permits = encode(pb.BaseCommand(type=Kind.FLOW, flow=flow))
    return permits + with_entry(pb.BaseCommand(type=Kind.SEND, send=send), seal(metadata, b"last"))


_kept = [kind for kind in USUAL if kind is not Kind.CLOSE_PRODUCER]
_producing = st.lists(frames(st.sampled_from(_kept), whole=True), max_size=12)
_usual = st.lists(frames(st.sampled_from(USUAL), whole=True), max_size=12)
_any = st.lists(frames(st.sampled_from(USUAL) | st.sampled_from(tuple(Kind)), whole=False), max_size=8)
_waiting = st.builds(Session, _whole_openings, _producing.map(tuple), st.just(True))
_hasty = st.builds(Session, st.one_of(_openings, _whole_openings), st.one_of(_usual, _any).map(tuple))
sessions = st.lists(st.one_of(_waiting, _waiting, _hasty), min_size=1, max_size=3)
"""Sessions of concurrent clients."""
