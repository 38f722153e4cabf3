"""Which clients get the metadata that a broker adds to entries."""

from dataclasses import replace
from pathlib import Path

import pytest

from quire_broker.server.broker import BrokerSettings
from quire_broker.settings.entry_metadata import EntryMetadataSettings
from quire_broker.topic.topic import TopicSettings
from quire_broker.wire.entry import peek_broker_metadata
from quire_broker.wire.frames import MessageFrame
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import TOPIC, Wire, stored
from tests.support.broker_world import running_brokers


async def first_message(wire: Wire) -> bytes:
    """The stored part of the first message, for a new subscription."""
    subscribe = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=3, initialPosition=1
    )
    assert (await wire.answer(pb.BaseCommand(type=Kind.SUBSCRIBE, subscribe=subscribe))).type == Kind.SUCCESS
    wire.send(pb.BaseCommand(type=Kind.FLOW, flow=pb.CommandFlow(consumer_id=1, messagePermits=1)))
    frame = await wire.next()
    assert isinstance(frame, MessageFrame)
    return bytes(frame.entry)


@pytest.mark.parametrize(
    ("exposed", "version", "understood", "start"),
    [
        pytest.param(True, 18, True, b"\x0e\x02", id="sent"),
        pytest.param(False, 18, True, b"\x0e\x01", id="not-exposed"),
        pytest.param(True, 18, False, b"\x0e\x01", id="not-declared"),
        pytest.param(True, 17, True, b"\x0e\x01", id="older"),
        pytest.param(True, 10, True, b"\x00\x00", id="without-checksum"),
    ],
)
async def test_clients_get_it_if_they_understand_it_and_the_broker_exposes_it(
    tmp_path: Path, exposed: bool, version: int, understood: bool, start: bytes
) -> None:
    def changed(_: int, common: BrokerSettings) -> BrokerSettings:
        topic = TopicSettings(entry_metadata=EntryMetadataSettings(timestamp=True, index=True))
        session = replace(common.session, entry_metadata_sent=exposed)
        return replace(common, session=session, topics=replace(common.topics, topic=topic))

    async with running_brokers(tmp_path, 1, of_broker=changed) as world:
        wire = await Wire.reach(world.brokers[0].port)
        flags = pb.FeatureFlags(supports_broker_entry_metadata=understood)
        connect = pb.CommandConnect(client_version="t", protocol_version=version, feature_flags=flags)
        assert (await wire.answer(pb.BaseCommand(type=Kind.CONNECT, connect=connect))).type == Kind.CONNECTED
        await wire.lookup()
        await wire.produce()
        await stored(wire, range(1))
        entry = await first_message(wire)
        assert (entry[:2], entry[-2:]) == (start, b"m0")
        added = peek_broker_metadata(entry)
        assert (None if added is None else added.index) == (0 if start == b"\x0e\x02" else None)
