"""The asyncio client against real brokers: what it publishes is stored in order, and what it confirms is so."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from quire_bookie.errors import ConfigError
from quire_client import (
    EARLIEST,
    LATEST,
    BrokerRefusedError,
    Client,
    ClientOptions,
    ClosedError,
    Codec,
    ConsumerOptions,
    Extra,
    InitialPosition,
    MessageId,
    NoBrokerError,
    NoSuchTopicError,
    ProducerOptions,
    SubscriptionType,
    UnconfirmedError,
)
from quire_client.consumer import Receiver
from tests.support.broker_world import running_brokers
from tests.support.standalone import StandaloneProcess

WAIT_S = 60.0
MANUAL = Path(__file__).resolve().parents[2] / "docs/python-client.md"
QUICK = ClientOptions(backoff_s=(0.05, 0.5))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of one of two brokers; the topics belong to the one that is asked first."""
    async with (
        running_brokers(tmp_path, 2) as world,
        Client(f"pulsar://127.0.0.1:{world.brokers[0].port}", options=QUICK) as client,
    ):
        yield client


async def payloads(receiver: Receiver, count: int) -> list[bytes]:
    async with asyncio.timeout(WAIT_S):
        return [(await receiver.receive()).payload for _ in range(count)]


def cut(client: Client) -> None:
    """End all connections without a word."""
    for connection in client.brokers._connections.values():
        assert connection._transport is not None
        connection._transport.abort()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_messages_come_back_as_they_were_sent(client: Client, codec: Codec) -> None:
    options = ProducerOptions(compression=codec, batch_messages_max=7)
    async with client.producer("t", options) as producer:
        first = await producer.send(b"first", key="k", properties={"a": "b"}, event_time_ms=5)
        for number in range(50):
            await producer.enqueue(b"%d" % number)
    async with client.reader("t") as reader:
        message = await reader.receive()
        assert (message.id, message.payload, message.key) == (first, b"first", "k")
        assert (message.properties, message.event_time_ms) == ({"a": "b"}, 5)
        assert await payloads(reader, 50) == [b"%d" % number for number in range(50)]
        (last,) = await reader.last_message_ids()
    async with client.reader("t", MessageId(last.ledger_id, last.entry_id - 1, 3)) as reader:
        after = await reader.receive()
        assert after.id[:3] == (last.ledger_id, last.entry_id - 1, 4)  # within a batch
    async with client.reader("t", LATEST) as reader, client.producer("t") as producer:
        await producer.send(b"new")
        assert await payloads(reader, 1) == [b"new"]


async def test_connections_that_break_lose_and_double_and_reorder_nothing(client: Client) -> None:
    ids: list[MessageId | BrokerRefusedError] = []
    # Few enough without a receipt that the connections break in the middle.
    options = ProducerOptions(name="p", batch_messages_max=5, pending_messages_max=50)
    async with client.producer("t", options) as producer, client.reader("t") as reader:
        reading = asyncio.ensure_future(payloads(reader, 300))
        for number in range(300):
            await producer.enqueue(b"%d" % number, on_done=ids.append)
            if number % 60 == 30:
                cut(client)
        await producer.flush()
        found = [int(each) for each in await reading]
    assert all(isinstance(each, MessageId) for each in ids)
    # Without deduplication an entry whose receipt was lost is stored again, behind those that were sent after it.
    assert set(found) <= set(range(300))
    async with client.reader("t") as reader:
        firsts: list[int] = []
        seen: set[int] = set()
        async with asyncio.timeout(WAIT_S):
            while len(firsts) < 300:
                number = int((await reader.receive()).payload)
                if number not in seen:
                    seen.add(number)
                    firsts.append(number)
    assert firsts == list(range(300))


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_what_is_confirmed_does_not_come_again_and_the_rest_does(client: Client, kind: SubscriptionType) -> None:
    options = ConsumerOptions(kind, InitialPosition.EARLIEST, redelivery_delay_s=0.05)
    async with client.consumer("t", "s", options) as consumer:
        async with client.producer("t", ProducerOptions(batch_messages_max=1)) as producer:
            for number in range(10):
                await producer.enqueue(b"%d" % number, Extra(key="k"))
        messages = [await consumer.receive() for _ in range(10)]
        for message in messages[:3]:
            consumer.acknowledge_soon(message)
        cut(client)  # before they are sent
        await consumer.confirmed()
        again = [await consumer.receive() for _ in range(7)]
        assert [each.payload for each in again] == [b"%d" % number for number in range(3, 10)]
        await consumer.acknowledge(again[0])
        consumer.refuse(again[1])
        found = {await asyncio.wait_for(consumer.receive(), WAIT_S)}
        assert {each.payload for each in found} == {b"4"}
    async with client.consumer("t", "s", options) as consumer:
        assert await payloads(consumer, 6) == [b"%d" % number for number in range(4, 10)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive(), 0.1)


async def test_a_cumulative_acknowledgement_covers_what_precedes_it_where_order_is_kept(client: Client) -> None:
    options = ConsumerOptions(initial=InitialPosition.EARLIEST)
    async with client.producer("t", ProducerOptions(batch_messages_max=4)) as producer:
        for number in range(12):
            await producer.enqueue(b"%d" % number)
    async with client.consumer("t", "s", options) as consumer:
        messages = [await consumer.receive() for _ in range(8)]
        await consumer.acknowledge_all_to(messages[7])
    async with client.consumer("t", "s", options) as consumer:
        assert await payloads(consumer, 4) == [b"8", b"9", b"10", b"11"]
        with pytest.raises(ConfigError, match="was not received by this consumer"):
            await consumer.acknowledge(messages[0])
        await consumer.seek(messages[3].id)
        assert await payloads(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
    shared = ConsumerOptions(SubscriptionType.SHARED)
    async with client.consumer("t", "shared", shared) as consumer:
        with pytest.raises(ConfigError, match="Shared"):
            await consumer.acknowledge_all_to(messages[0])


async def test_what_was_acknowledged_before_a_seek_comes_again(client: Client) -> None:
    async with client.producer("t", ProducerOptions(batch_messages_max=1)) as producer:
        for number in range(10):
            await producer.enqueue(b"%d" % number)
    async with client.consumer("t", "s", ConsumerOptions(initial=InitialPosition.EARLIEST)) as consumer:
        for _ in range(10):
            consumer.acknowledge_soon(await consumer.receive())
        await consumer.seek(EARLIEST)
        assert await payloads(consumer, 10) == [b"%d" % number for number in range(10)]


async def test_a_consumer_without_one_of_its_partitions_says_so_while_messages_wait(client: Client) -> None:
    async with client.producer("t") as producer:
        for number in range(10):
            await producer.enqueue(b"%d" % number)
    async with client.consumer("t", "s", ConsumerOptions(initial=InitialPosition.EARLIEST)) as consumer:
        await consumer.receive()
        assert consumer._queue
        consumer._parts[0]._finish(BrokerRefusedError("no more retries"))
        with pytest.raises(BrokerRefusedError, match="no more retries"):
            await consumer.receive()


@pytest.mark.parametrize("before", [0, 3])
async def test_a_reader_of_new_messages_misses_none_when_its_connection_breaks(client: Client, before: int) -> None:
    async with client.producer("t") as producer, client.reader("t", LATEST) as reader:
        await producer.send(b"old")
        assert await payloads(reader, 1) == [b"old"]  # it attached before
    async with client.producer("t") as producer, client.reader("t", LATEST) as reader:
        for number in range(before):
            await producer.send(b"%d" % number)
        async with asyncio.timeout(WAIT_S):
            while len(reader._queue) < before:  # noqa: ASYNC110 - there is no event: the queue is watched
                await asyncio.sleep(0.01)
        cut(client)
        await producer.send(b"%d" % before)
        assert await payloads(reader, before + 1) == [b"%d" % number for number in range(before + 1)]


async def test_the_queue_of_a_slow_consumer_is_bounded(client: Client) -> None:
    options = ConsumerOptions(initial=InitialPosition.EARLIEST, queue_messages_max=10)
    async with client.producer("t", ProducerOptions(batch_messages_max=1)) as producer:
        for number in range(200):
            await producer.enqueue(b"%d" % number)
    async with client.consumer("t", "s", options) as consumer:
        found = []
        for _ in range(200):
            found.append(await asyncio.wait_for(consumer.receive(), WAIT_S))
            assert len(consumer._queue) <= 10
    assert [each.payload for each in found] == [b"%d" % number for number in range(200)]


async def test_a_producer_waits_at_its_bounds_and_refuses_what_no_broker_takes(client: Client) -> None:
    options = ProducerOptions(pending_messages_max=3, batch_messages_max=1)
    async with client.producer("t", options) as producer:
        (topic,) = producer._producers
        for _ in range(20):
            await producer.enqueue(b"m")
            assert len(topic._pending) <= 3
        with pytest.raises(ConfigError, match=f"its broker takes {producer.message_bytes_max}"):
            await producer.send(bytes(producer.message_bytes_max + 1))
        await producer.send(b"m", sequence_id=100)
        with pytest.raises(ConfigError, match="the next one of this producer is 101"):
            await producer.send(b"m", sequence_id=100)


async def test_errors_say_what_happened(client: Client, tmp_path: Path) -> None:
    with pytest.raises(NoBrokerError, match=r"no broker answers at pulsar://127\.0\.0\.1:1 "):
        async with Client("pulsar://127.0.0.1:1"):
            pass
    with pytest.raises(ConfigError, match="is not a broker address"):
        async with Client("http://127.0.0.1:1"):
            pass
    with pytest.raises(NoSuchTopicError, match="does not exist"):
        await client.reader("missing", options=ConsumerOptions(creates_topic=False)).open()
    async with client.producer("t", ProducerOptions(name="p")) as producer:
        with pytest.raises(BrokerRefusedError, match="PRODUCER_BUSY"):
            await client.producer("t", ProducerOptions(name="p")).open()
        closed = client.reader("t")
        await closed.open()
        await closed.close()
        with pytest.raises(ClosedError, match="the consumer is closed"):
            await closed.receive()
        await producer.close()
        with pytest.raises(ClosedError, match="the producer is closed"):
            await producer.send(b"m")


async def test_a_message_without_a_receipt_in_time_fails_and_is_not_confirmed(tmp_path: Path) -> None:
    async with running_brokers(tmp_path, 1) as world:
        url = f"pulsar://127.0.0.1:{world.brokers[0].port}"
        async with Client(url, options=ClientOptions(reconnect_s=30.0)) as client:
            producer = await client.producer("t", ProducerOptions(send_timeout_s=0.3)).open()
            await producer.send(b"stored")
            await world.brokers[0].stop()
            with pytest.raises(UnconfirmedError, match=r"no receipt in 0\.3 s; the message may be stored, or not"):
                await producer.send(b"m")
            await producer.close()


@pytest.mark.slow
async def test_a_killed_standalone_loses_and_doubles_no_message(tmp_path: Path) -> None:
    standalone = StandaloneProcess(tmp_path, settings=("brokerDeduplicationEnabled=true",))
    standalone.start()
    try:
        confirmed: list[int] = []
        async with Client(standalone.url, options=QUICK) as client:
            options = ProducerOptions(name="p", batch_messages_max=10, pending_messages_max=200, send_timeout_s=120.0)
            async with client.producer("t", options) as producer, client.reader("t") as reader:
                for number in range(2000):
                    await producer.enqueue(
                        b"%d" % number,
                        on_done=lambda result, number=number: confirmed.append(  # type: ignore[misc]
                            number if isinstance(result, MessageId) else -1
                        ),
                    )
                    if number == 1000:
                        await asyncio.to_thread(standalone.kill)
                        await asyncio.to_thread(standalone.start)
                await producer.flush()
                assert confirmed == list(range(2000))
                assert await payloads(reader, 2000) == [b"%d" % number for number in range(2000)]
    finally:
        standalone.close()


async def test_the_examples_of_the_manual_run() -> None:
    first, second = (block.split("```")[0] for block in MANUAL.read_text().split("```python\n")[1:])
    exec(compile(second, "docs/python-client.md", "exec"), {})
    with TemporaryDirectory() as folder:
        async with running_brokers(Path(folder), 1) as world:
            code = first.replace("pulsar://localhost:6650", f"pulsar://127.0.0.1:{world.brokers[0].port}")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
            )
            output, errors = await asyncio.wait_for(process.communicate(), WAIT_S)
    assert process.returncode == 0, errors.decode()
    assert "table 1 b'coffee'" in output.decode()
