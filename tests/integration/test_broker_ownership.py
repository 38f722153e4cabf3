"""Two brokers on one metadata store and one bookie: redirects, takeover after a lost session, no acknowledged loss."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import StartupError
from quire_bookie.server import BookieSettings, RunningBookie, start_bookie
from quire_broker.managed_ledger.settings import ManagedLedgerSettings
from quire_broker.server.broker import BrokerSettings, RunningBroker, start_broker
from quire_broker.standalone import with_quorums
from quire_broker.topic.topics import TopicsSettings
from quire_broker.wire.entry import seal
from quire_broker.wire.frames import FrameDecoder, MessageFrame, encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.roomy_disk import NEVER_FULL

TOPIC = "persistent://public/default/owned"


class Pair:
    """Two brokers, the sessions under them, and what they share."""

    def __init__(self) -> None:
        self.server = SimMetadata(random.Random(1), delay_s=(0.0, 0.001))
        self.sessions: list[SimMetadataStore] = []
        self.clients: list[LedgerClient] = []
        self.brokers: list[RunningBroker] = []
        self.disk = LocalDisk()
        self.bookie: RunningBookie

    async def start(self, folder: Path) -> None:
        clock, chance = SystemClock(), SystemChance()
        settings = BookieSettings(
            data_dir=str(folder), listen="127.0.0.1", advertise="127.0.0.1", port=0, disk_usage_threshold=NEVER_FULL
        )
        store = SimMetadataStore(self.server)
        self.bookie = await start_bookie(settings, metadata=store, disk=self.disk, clock=clock, chance=chance)
        ledger = with_quorums(ManagedLedgerSettings(), 1)
        for _ in range(2):
            session = SimMetadataStore(self.server)
            client = await LedgerClient.open(session, clock=clock, chance=chance)
            broker = await start_broker(
                BrokerSettings(
                    listen="127.0.0.1", advertise="127.0.0.1", port=0, http_port=0, topics=TopicsSettings(ledger=ledger)
                ),
                metadata=session,
                ledger_client=client,
                clock=clock,
                chance=chance,
            )
            self.sessions.append(session)
            self.clients.append(client)
            self.brokers.append(broker)

    async def stop(self) -> None:
        for broker in self.brokers:
            await broker.stop()
        for client in self.clients:
            await client.close()
        await self.bookie.stop()
        self.disk.close()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = Pair()
    await made.start(tmp_path)
    yield made
    await made.stop()


class Wire:
    """A client of frames on asyncio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder(1_000_000)
        self.frames: list[pb.BaseCommand | MessageFrame] = []

    @classmethod
    async def open(cls, broker: RunningBroker) -> "Wire":
        wire = cls(*await asyncio.open_connection("127.0.0.1", broker.port))
        wire.send(pb.BaseCommand(type=2, connect=pb.CommandConnect(client_version="t", protocol_version=20)))
        await wire.next()
        return wire

    def send(self, command: pb.BaseCommand) -> None:
        self.writer.write(encode(command))

    def publish(self, sequence_id: int) -> None:
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
        entry = seal(metadata, b"m%d" % sequence_id)
        send = pb.CommandSend(producer_id=1, sequence_id=sequence_id)
        command = pb.BaseCommand(type=6, send=send).SerializeToString()
        head = (4 + len(command) + len(entry)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
        self.writer.write(head + command + entry)

    async def next(self) -> pb.BaseCommand | MessageFrame:
        while not self.frames:
            data = await asyncio.wait_for(self.reader.read(65536), 20)
            if not data:
                raise EOFError
            self.frames += self.decoder.feed(data)  # type: ignore[arg-type]
        return self.frames.pop(0)

    async def answer(self, command: pb.BaseCommand) -> pb.BaseCommand:
        self.send(command)
        frame = await self.next()
        assert isinstance(frame, pb.BaseCommand)
        return frame

    async def lookup(self) -> pb.CommandLookupTopicResponse:
        request = pb.CommandLookupTopic(topic=TOPIC, request_id=1)
        return (await self.answer(pb.BaseCommand(type=23, lookup=request))).lookup_response

    async def produce(self) -> pb.BaseCommand:
        request = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=2, producer_name="p")
        return await self.answer(pb.BaseCommand(type=5, producer=request))


async def test_a_lookup_at_the_other_broker_redirects_to_the_owner(pair: Pair) -> None:
    first, second = pair.brokers
    owner, other = await Wire.open(first), await Wire.open(second)
    mine = await owner.lookup()
    assert (mine.response, mine.brokerServiceUrl) == (1, first.urls.native)
    theirs = await other.lookup()
    assert (theirs.response, theirs.brokerServiceUrl) == (0, first.urls.native)
    assert (await owner.produce()).type == Kind.PRODUCER_SUCCESS
    refused = await other.produce()
    assert (refused.type, refused.error.error) == (Kind.ERROR, 6)


async def test_rest_redirects_to_the_owner(pair: Pair) -> None:
    first, second = pair.brokers
    await (await Wire.open(first)).lookup()
    path = TOPIC.replace("persistent://", "/admin/v2/persistent/")
    async with aiohttp.ClientSession() as session:
        async with session.put(second.urls.http + path, allow_redirects=False) as answer:
            assert answer.status == 307
            assert answer.headers["Location"] == first.urls.http + path
        async with session.put(second.urls.http + path) as answer:
            assert answer.status == 204
        async with session.get(second.urls.http + path + "/stats") as answer:
            assert (await answer.json())["ownerBroker"] == first.broker_id


async def test_generated_producer_names_differ_between_brokers(pair: Pair) -> None:
    names = set()
    for number, broker in enumerate(pair.brokers):
        wire = await Wire.open(broker)
        topic = f"persistent://public/default/names-{number}"
        await wire.answer(pb.BaseCommand(type=23, lookup=pb.CommandLookupTopic(topic=topic, request_id=1)))
        request = pb.CommandProducer(topic=topic, producer_id=1, request_id=2)
        made = await wire.answer(pb.BaseCommand(type=5, producer=request))
        if made.type == Kind.PRODUCER_SUCCESS:
            names.add(made.producer_success.producer_name)
        else:
            names.add(f"redirected-{number}")
    assert len(names) == 2


async def test_after_a_lost_session_the_other_broker_takes_over_with_everything_acknowledged(pair: Pair) -> None:
    first, second = pair.brokers
    wire = await Wire.open(first)
    await wire.lookup()
    assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
    for number in range(20):
        wire.publish(number)
    receipts = [await wire.next() for _ in range(20)]
    assert all(isinstance(each, pb.BaseCommand) and each.type == Kind.SEND_RECEIPT for each in receipts)
    pair.sessions[0].expire()
    closed = await wire.next()
    assert isinstance(closed, pb.BaseCommand)
    assert closed.type == Kind.CLOSE_PRODUCER
    other = await Wire.open(second)
    owner = await other.lookup()
    assert (owner.response, owner.brokerServiceUrl) == (1, second.urls.native)
    subscribe = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", subType=0, consumer_id=1, request_id=3, initialPosition=1
    )
    assert (await other.answer(pb.BaseCommand(type=4, subscribe=subscribe))).type == Kind.SUCCESS
    other.send(pb.BaseCommand(type=11, flow=pb.CommandFlow(consumer_id=1, messagePermits=100)))
    got = [await other.next() for _ in range(20)]
    numbers = [int(bytes(each.entry).rsplit(b"m", 1)[1]) for each in got if isinstance(each, MessageFrame)]
    assert numbers == list(range(20))
    back = await (await Wire.open(first)).lookup()
    assert (back.response, back.brokerServiceUrl) == (0, second.urls.native)


async def test_unloading_a_namespace_frees_its_bundles(pair: Pair) -> None:
    first, second = pair.brokers
    await (await Wire.open(first)).lookup()
    url = first.urls.http + "/admin/v2/namespaces/public/default/unload"
    async with aiohttp.ClientSession() as session, session.put(url) as answer:
        assert answer.status == 204
    assert not first.owners.held
    answer_of_second = await (await Wire.open(second)).lookup()
    assert answer_of_second.brokerServiceUrl == second.urls.native


async def test_a_port_in_use_is_one_clear_error(pair: Pair) -> None:
    settings = BrokerSettings(listen="127.0.0.1", port=pair.brokers[0].port, http_port=0)
    with pytest.raises(StartupError, match=f"port {pair.brokers[0].port} on 127.0.0.1"):
        await start_broker(
            settings,
            metadata=pair.sessions[0],
            ledger_client=pair.clients[0],
            clock=SystemClock(),
            chance=SystemChance(),
        )
