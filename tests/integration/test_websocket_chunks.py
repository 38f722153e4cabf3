"""WebSocket consumers and readers of messages that Pulsar's client sends in chunks."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pulsar
import pytest
from aiohttp import WSMsgType

from quire_broker.limits import WEBSOCKET_CHUNKED_BYTES_MAX
from quire_broker.server.broker import RunningBroker
from quire_broker.settings.clients import SessionSettings
from quire_broker.wire.entry import seal
from quire_broker.wire.hot import encode_send
from quire_broker.wire.proto import pulsar_pb2 as pb
from quire_client import Client
from tests.integration.test_websockets import SERVED, TOPIC, Sockets, acknowledge, acknowledged, received
from tests.support.broker_world import running_brokers
from tests.support.raw_client import Producer

FULL_NAME = "persistent://public/default/orders"
LARGE = base64.b64encode(random.Random(3).randbytes(300_000)).decode()


@pytest.fixture
async def sockets(tmp_path: Path) -> AsyncIterator[Sockets]:
    """Two brokers of messages of 100 KiB at most."""
    small = SessionSettings(message_bytes_max=100 * 1024)
    async with (
        running_brokers(tmp_path, 2, websocket=SERVED, of_broker=lambda _, one: replace(one, session=small)) as world,
        aiohttp.ClientSession() as session,
    ):
        yield Sockets(world, session)


async def produce(sockets: Sockets, *texts: str, codec: Any = pulsar.CompressionType.NONE) -> None:
    """Send messages with Pulsar's client, in chunks where they are large."""

    def send() -> None:
        client = pulsar.Client(
            f"pulsar://127.0.0.1:{sockets.world.brokers[0].port}",
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
        )
        try:
            producer = client.create_producer(
                FULL_NAME, chunking_enabled=True, batching_enabled=False, compression_type=codec
            )
            for text in texts:
                producer.send(text.encode(), properties={"a": "b"}, partition_key="k")
        finally:
            client.close()

    await asyncio.to_thread(send)


@pytest.mark.parametrize("codec", [pulsar.CompressionType.NONE, pulsar.CompressionType.ZSTD])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared", "Key_Shared"])
async def test_the_chunks_of_a_message_arrive_as_one_and_are_acknowledged_together(
    sockets: Sockets, kind: str, codec: Any
) -> None:
    consumer = await sockets.open(f"consumer/{TOPIC}/s?subscriptionType={kind}&receiverQueueSize=1")
    await produce(sockets, "before", LARGE, LARGE[::-1], "after", codec=codec)
    for text in ("before", LARGE, LARGE[::-1], "after"):
        message = await received(consumer)
        assert message["payload"] == text
        assert (message["key"], message["properties"]) == ("k", {"a": "b"})
        await acknowledge(consumer, message)
    await acknowledged(sockets.world, "s")


async def test_a_refused_message_comes_again_whole(sockets: Sockets) -> None:
    consumer = await sockets.open(f"consumer/{TOPIC}/s?subscriptionType=Shared&negativeAckRedeliveryDelay=10")
    await produce(sockets, LARGE)
    first = await received(consumer)
    await consumer.send_json({"type": "negativeAcknowledge", "messageId": first["messageId"]})
    second = await received(consumer)
    assert second["payload"] == LARGE and second["redeliveryCount"] == 1
    assert second["messageId"] == first["messageId"]
    await acknowledge(consumer, second)
    await acknowledged(sockets.world, "s")


async def test_an_unacknowledged_message_comes_whole_to_the_next_session(sockets: Sockets) -> None:
    consumer = await sockets.open(f"consumer/{TOPIC}/s")
    await produce(sockets, LARGE)
    await received(consumer)
    await consumer.close()
    again = await sockets.open(f"consumer/{TOPIC}/s")
    message = await received(again)
    assert message["payload"] == LARGE
    await acknowledge(again, message)
    await acknowledged(sockets.world, "s")


async def test_a_reader_goes_on_after_a_chunked_message(sockets: Sockets) -> None:
    await produce(sockets, "before", LARGE, "after")
    reader = await sockets.open(f"reader/{TOPIC}?messageId=earliest")
    messages = [await received(reader) for _ in range(3)]
    assert [message["payload"] for message in messages] == ["before", LARGE, "after"]
    after = await sockets.open(f"reader/{TOPIC}?messageId={messages[1]['messageId'].replace('+', '%2B')}")
    assert (await received(after))["payload"] == "after"


class RawProducer(Producer):
    """Sends single chunks."""

    async def send_chunk(self, uuid: str, index: int, text: str) -> None:
        """Send one of the two chunks of a message."""
        metadata = pb.MessageMetadata(producer_name=self._name, sequence_id=self._sequence, publish_time=1, uuid=uuid)
        metadata.num_chunks_from_msg, metadata.chunk_id, metadata.total_chunk_msg_size = 2, index, 2 * len(text)
        entry = seal(metadata, text.encode())
        self._pending.append((self._sequence, len(entry)))
        self._pending_bytes += len(entry)
        self._connection.write(encode_send(self._id, self._sequence, entry, 1))
        self._sequence += 1
        await self.flush()


@asynccontextmanager
async def raw(broker: RunningBroker) -> AsyncIterator[RawProducer]:
    async with Client(f"pulsar://127.0.0.1:{broker.port}") as client:
        producer = RawProducer(await client.brokers.owner(FULL_NAME))
        await producer.open(FULL_NAME)
        yield producer


@pytest.mark.parametrize("path", [f"reader/{TOPIC}?messageId=earliest", f"consumer/{TOPIC}/s"])
async def test_a_topic_that_moves_inside_a_message_loses_nothing_and_repeats_nothing(
    sockets: Sockets, path: str
) -> None:
    first, second = sockets.world.brokers
    socket = await sockets.open(path)
    async with raw(first) as producer:
        for uuid, index, text in (("a", 0, "A"), ("b", 0, "B"), ("c", 0, "C"), ("a", 1, "a"), ("c", 1, "c")):
            await producer.send_chunk(uuid, index, text)
    for text in ("Aa", "Cc"):
        message = await received(socket)
        assert message["payload"] == text
        await acknowledge(socket, message)
    (bundle,) = {owned for owned in first.owners.held if first.topics.loaded}
    await first.unload_bundle(bundle, second.broker_id)
    async with raw(second) as producer:
        await producer.send_chunk("b", 1, "b")
    message = await received(socket)
    assert message["payload"] == "Bb"
    await acknowledge(socket, message)
    if path.startswith("consumer"):
        await acknowledged(sockets.world, "s")


async def test_a_message_that_is_too_large_for_websocket_ends_the_session(sockets: Sockets) -> None:
    consumer = await sockets.open(f"consumer/{TOPIC}/s")
    await produce(sockets, "x" * (100 * 1024 * 101))
    frame = await consumer.receive(timeout=20)
    assert frame.type is WSMsgType.CLOSE and consumer.close_code == 1011
    assert f"WebSocket serves at most {WEBSOCKET_CHUNKED_BYTES_MAX} in 100" in str(frame.extra)
