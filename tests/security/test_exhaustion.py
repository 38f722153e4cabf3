"""Floods of connections to each port of a real process that may open few files.

They must not take the handles that the process needs for its files, nor end a client that was let in.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.support.broker_wire import Wire, stored
from tests.support.certificates import Authority
from tests.support.ports import free_ports
from tests.support.standalone import StandaloneProcess

pytestmark = pytest.mark.xdist_group("exhaustion")  # of one process
OPEN_FILES = 300
PORTS = ("broker", "broker over TLS", "web", "web over TLS", "bookie")


class Cramped(StandaloneProcess):
    """A process with few handles. `ports`: by name."""

    ports: dict[str, int]

    @property
    def open_files(self) -> int:
        """Return the number of open handles."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@pytest.fixture(scope="module")
def cramped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cramped]:
    folder: Path = tmp_path_factory.mktemp("cramped")
    pem, (broker, web) = Authority(folder).issue("broker", "127.0.0.1"), free_ports(2)
    tls = (f"tlsCertificateFilePath={pem.certificate}", f"tlsKeyFilePath={pem.key}")
    ports = (f"brokerServicePortTls={broker}", f"webServicePortTls={web}")
    found = Cramped(folder, settings=(*tls, *ports), open_files=OPEN_FILES)
    plain = [urlsplit(url).port or 0 for url in (found.url, found.http)]
    found.ports = dict(zip(PORTS, (plain[0], broker, plain[1], web, found.bookie_port), strict=True))
    found.start()
    yield found
    found.close()


@asynccontextmanager
async def flood(port: int, count: int) -> AsyncIterator[None]:
    """Keep silent connections open, which reconnect when they are closed."""

    async def hold(number: int) -> None:
        # Of many addresses, so that the limit of one does not hold them back.
        address = f"127.0.1.{number % 200 + 1}"
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            except OSError:
                await asyncio.sleep(0.05)
                continue
            try:
                await reader.read()
            except OSError:
                await asyncio.sleep(0.05)
            finally:
                writer.close()
            await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(hold(number)) for number in range(count)]
    await asyncio.sleep(1.0)  # until all have tried
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def producer(cramped: Cramped) -> Wire:
    wire = await Wire.reach(cramped.ports["broker"])
    await wire.connect()
    await wire.lookup()
    answer = await wire.produce()
    assert answer.type == Kind.PRODUCER_SUCCESS, answer
    return wire


async def connected(cramped: Cramped) -> None:
    """Wait until a client is admitted: silent connections are closed for it, but a new one may be closed, too."""
    for _ in range(100):
        late = await Wire.reach(cramped.ports["broker"])
        try:
            assert (await late.connect()).type == Kind.CONNECTED
            return
        except (EOFError, OSError):
            await asyncio.sleep(0.1)
        finally:
            late.writer.close()
    raise AssertionError("no client was let in")


async def healthy(cramped: Cramped) -> None:
    """Wait until a probe gets a response: a flood may close some of them."""
    for _ in range(100):
        if await asyncio.to_thread(cramped.is_healthy):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("no probe was answered")


@pytest.mark.parametrize("port", PORTS)
async def test_a_flood_of_connections_leaves_handles_for_files_and_for_clients(cramped: Cramped, port: str) -> None:
    wire = await producer(cramped)
    try:
        async with flood(cramped.ports[port], OPEN_FILES + 100):
            assert cramped.open_files < OPEN_FILES // 2 + 50, "half of them belong to files"
            await stored(wire, range(100))
            if port.startswith("broker"):
                await connected(cramped)
            await healthy(cramped)  # a probe that fails ends a pod
        await stored(wire, range(100, 110))
        await healthy(cramped)
    finally:
        wire.writer.close()
    assert "Too many open files" not in cramped.log.read_text()


async def test_requests_of_one_connection_are_bounded(cramped: Cramped) -> None:
    wire = await Wire.reach(cramped.ports["broker"])
    await wire.connect()
    count = 12_000
    for number in range(count):
        topic = f"persistent://public/default/looked-up-{number}"
        wire.send(pb.BaseCommand(type=Kind.LOOKUP, lookup=pb.CommandLookupTopic(topic=topic, request_id=number)))
    for _ in range(count):
        answer = await wire.next()
        assert isinstance(answer, pb.BaseCommand)
        assert answer.type == Kind.LOOKUP_RESPONSE
    assert (await wire.answer(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))).type == Kind.PONG
    wire.writer.close()
    assert await asyncio.to_thread(cramped.is_healthy)
