"""Sessions of the Pulsar protocol: an opening that works, then commands with odd fields, in any order, some damaged.

Fields are those of the descriptors, so that a new command or field is sent without an entry here.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

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
    """What one client sends. `opening`: each is sent when the one before it is answered; `rest`: at once."""

    opening: tuple[pb.BaseCommand, ...]
    rest: tuple[bytes, ...]


@st.composite
def entries(draw: st.DrawFn) -> bytes:
    """Return what follows the command of a SEND: sealed metadata with any fields, and a payload."""
    metadata = pb.MessageMetadata(producer_name="fuzz", sequence_id=draw(st.integers(0, 9)), publish_time=1)
    if draw(st.booleans()):
        draw(fill(metadata, {"partition_key": st.sampled_from(("k", "", "k" * 300))}))
    entry = seal(metadata, draw(st.binary(max_size=30)))
    return entry if draw(st.integers(0, 3)) else draw(damaged(entry))


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


_openings = st.one_of(
    st.just(()),
    st.builds(lambda connect: (connect,), commands(st.just(Kind.CONNECT))),
    st.builds(opening, st.integers(0, 3), st.booleans(), st.booleans()),
    st.builds(opening, st.integers(0, 3), st.booleans(), st.booleans()),
    st.builds(opening, st.integers(0, 3), st.booleans(), st.booleans()),
)
PING = pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing())
_usual = st.lists(frames(st.sampled_from(USUAL), whole=True), max_size=12)
_any = st.lists(frames(st.sampled_from(USUAL) | st.sampled_from(tuple(Kind)), whole=False), max_size=8)
sessions = st.builds(Session, _openings, st.one_of(_usual, _usual, _usual, _any).map(tuple))
