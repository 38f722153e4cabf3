"""A proxy before two brokers, and before a broker that the test plays: lookups, pipes, bounds, refusals, the end."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest

from quire_bookie.errors import PeerProtocolError
from quire_bookie.settings.tls import TlsFiles
from quire_bookie.settings.tokens import TokenSettings
from quire_broker import limits
from quire_broker.errors import ServerError
from quire_broker.proxy.proxy import RunningProxy
from quire_broker.proxy.towards_brokers import TowardsBrokers
from quire_broker.security.settings import AccessSettings, AuthenticationSettings, ServerTlsSettings
from quire_broker.settings.proxy import ProxyLimits
from quire_broker.wire import commands
from quire_broker.wire.frames import encode
from quire_broker.wire.kinds import Kind, LookupType
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.sim.metadata import SimMetadataStore
from tests.support.broker_wire import TOPIC, Wire, received, stored
from tests.support.broker_world import BrokerWorld, running_brokers
from tests.support.certificates import Authority
from tests.support.loops import LOOPS, run_on
from tests.support.proxy_world import PORTS, PlayedBroker, ProxyClient, eventually, lookup, running_proxy

SECRET = b"a secret of tests that is long enough for HS256"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[BrokerWorld]:
    async with running_brokers(tmp_path, 2) as world:
        yield world


def address(url: str) -> str:
    return url.removeprefix("pulsar://")


async def through(proxy: RunningProxy, target: str) -> Wire:
    """A client that is connected to a broker through the proxy."""
    wire = await Wire.reach(proxy.ports.port)
    hello = pb.CommandConnect(client_version="t", protocol_version=20, proxy_to_broker_url=target)
    answer = await wire.answer(pb.BaseCommand(type=Kind.CONNECT, connect=hello))
    assert answer.type == Kind.CONNECTED, answer
    return wire


async def test_a_client_looks_up_and_uses_a_topic_of_either_broker(pair: BrokerWorld) -> None:
    async with running_proxy(SimMetadataStore(pair.server)) as proxy:
        first, second = pair.brokers
        owner = await Wire.open(second)
        assert (await owner.lookup()).response == LookupType.CONNECT
        client = await ProxyClient.open(proxy)
        assert (await client.connect()).type == Kind.CONNECTED
        for number in range(4):  # both brokers are asked in turns, and one of them redirects
            found = (await client.ask(lookup(number, TOPIC))).lookup_response
            assert (found.request_id, found.response, found.proxy_through_service_url) == (number, 1, True)
            assert found.brokerServiceUrl == found.brokerServiceUrlTls == second.urls.native
        wire = await through(proxy, address(second.urls.native))
        assert (await wire.produce()).type == Kind.PRODUCER_SUCCESS
        await stored(wire, range(20))
        assert await received(await through(proxy, second.urls.native), 20) == list(range(20))
        assert not first.owners.held
        assert proxy.parts.stats.lookups == 4


async def test_other_questions_are_answered_by_brokers(pair: BrokerWorld) -> None:
    async with running_proxy(SimMetadataStore(pair.server)) as proxy:
        client = await ProxyClient.open(proxy)
        await client.connect()
        asked = pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=7)
        answer = await client.ask(pb.BaseCommand(type=Kind.PARTITIONED_METADATA, partition_metadata=asked))
        assert (answer.partition_metadata_response.request_id, answer.partition_metadata_response.partitions) == (7, 0)
        listed = pb.CommandGetTopicsOfNamespace(request_id=8, namespace="public/default")
        answer = await client.ask(pb.BaseCommand(type=Kind.GET_TOPICS_OF_NAMESPACE, get_topics_of_namespace=listed))
        assert answer.get_topics_of_namespace_response.request_id == 8
        wanted = pb.CommandGetSchema(request_id=9, topic=TOPIC)
        answer = await client.ask(pb.BaseCommand(type=Kind.GET_SCHEMA, get_schema=wanted))
        assert answer.get_schema_response.request_id == 9
        failed = (await client.ask(lookup(10, "not a topic://"))).lookup_response
        assert (failed.request_id, failed.response, failed.error) == (10, 2, ServerError.INVALID_TOPIC_NAME)
        watch = pb.CommandWatchTopicList(request_id=11, watcher_id=1, namespace="public/default", topics_pattern=".*")
        answer = await client.ask(pb.BaseCommand(type=Kind.WATCH_TOPIC_LIST, watch_topic_list=watch))
        assert (answer.error.request_id, answer.error.error) == (11, ServerError.NOT_ALLOWED)
        assert (await client.ask(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))).type == Kind.PONG


@pytest.mark.parametrize(
    "target", ["localhost:1", "127.0.0.1:22", "example.org:6650", "broker", "http://127.0.0.1:80", "[::1"]
)
async def test_a_proxy_connects_to_registered_brokers_only(pair: BrokerWorld, target: str) -> None:
    async with running_proxy(SimMetadataStore(pair.server)) as proxy:
        client = await ProxyClient.open(proxy)
        answer = await client.connect(target)
        assert (answer.type, answer.error.error) == (Kind.ERROR, ServerError.SERVICE_NOT_READY)
        assert await client.rest() == []


async def test_a_broker_that_has_left_is_no_target_any_more(pair: BrokerWorld) -> None:
    async with running_proxy(SimMetadataStore(pair.server)) as proxy:
        gone = pair.brokers.pop()
        target = address(gone.urls.native)
        await through(proxy, target)
        await gone.stop()
        await eventually(lambda: len(proxy.parts.book.brokers()) == 1)
        assert (await (await ProxyClient.open(proxy)).connect(target)).type == Kind.ERROR


async def test_ports_that_are_not_permitted_are_refused(pair: BrokerWorld) -> None:
    async with running_proxy(SimMetadataStore(pair.server), allowed_ports=("6650", "6651")) as proxy:
        answer = await (await ProxyClient.open(proxy)).connect(address(pair.brokers[0].urls.native))
        assert answer.type == Kind.ERROR
        assert "brokerProxyAllowedTargetPorts" in answer.error.message


def frame(total: int, command: int, rest: bytes = b"") -> bytes:
    return total.to_bytes(4, "big") + command.to_bytes(4, "big") + rest


HELLO = encode(pb.BaseCommand(type=Kind.CONNECT, connect=pb.CommandConnect(client_version="t", protocol_version=19)))
PING = commands.PING


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("a command before CONNECT", PING),
        ("a lookup before CONNECT", encode(lookup())),
        ("no Pulsar", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("a frame above the limit", frame(limits.UNAUTHENTICATED_FRAME_BYTES_MAX + 1, 4)),
        ("a command longer than its frame", frame(8, 100, b"x" * 4)),
        ("no protobuf", frame(8, 4, b"\xff" * 4)),
        ("a second CONNECT", HELLO + HELLO),
        ("SEND on a connection for lookups", HELLO + bytes.fromhex("00000008000000040806320408011000")),
        ("a response", HELLO + commands.success(1)),
        ("a type that does not exist", HELLO + encode(pb.BaseCommand(type=99))),
    ],
)
async def test_hostile_handshakes_are_closed(name: str, sent: bytes) -> None:
    async with PlayedBroker() as broker, running_proxy(native=broker.url) as proxy:
        client = await ProxyClient.open(proxy)
        client.writer.write(sent)
        assert set(await client.rest()) <= {Kind.CONNECTED, Kind.ERROR}, name
        assert not broker.commands
        assert not proxy.parts.background.failures


@pytest.mark.parametrize("seed", range(3))
async def test_damaged_frames_close_their_connection_and_harm_no_other(seed: int) -> None:
    chance = random.Random(seed)
    async with PlayedBroker() as broker, running_proxy(native=broker.url) as proxy:
        good = await ProxyClient.open(proxy)
        await good.connect()
        named = pb.CommandConnect(client_version="t", protocol_version=19, proxy_to_broker_url="127.0.0.1:1")
        frames = [HELLO, encode(pb.BaseCommand(type=Kind.CONNECT, connect=named)), encode(lookup()), PING]
        for _ in range(100):
            sent = bytearray(b"".join(chance.choices(frames, k=chance.randint(1, 4))))
            for _ in range(chance.randint(1, 6)):
                sent[chance.randrange(len(sent))] = chance.randrange(256)
            client = await ProxyClient.open(proxy)
            client.writer.write(bytes(sent[: chance.randint(1, len(sent))]))
            client.writer.write_eof()
            try:
                await client.rest()
            except PeerProtocolError:
                pytest.fail(f"an answer that is no frame, to {bytes(sent)!r}")
        assert (await good.ask(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))).type == Kind.PONG
        await eventually(lambda: len(proxy.seats) == 1)
        assert not proxy.parts.background.failures
        assert not proxy.parts.stats.lookups_running


async def test_bytes_before_the_answer_of_the_broker_are_refused() -> None:
    async with PlayedBroker() as broker, running_proxy(native=broker.url) as proxy:
        hello = pb.CommandConnect(
            client_version="t", protocol_version=19, proxy_to_broker_url=f"127.0.0.1:{broker.port}"
        )
        for more in (PING, PING[:5]):
            client = await ProxyClient.open(proxy)
            client.writer.write(encode(pb.BaseCommand(type=Kind.CONNECT, connect=hello)) + more)
            assert set(await client.rest()) <= {Kind.CONNECTED, Kind.ERROR}
        assert not broker.commands, "the broker got none of them"


@pytest.mark.parametrize("sent", [PING[:5], commands.success(1)])
async def test_a_broker_that_sends_more_than_its_answer_is_refused(sent: bytes) -> None:
    async with PlayedBroker() as broker, running_proxy(native=broker.url) as proxy:
        broker.after_connected = sent
        client = await ProxyClient.open(proxy)
        client.send(
            pb.BaseCommand(
                type=Kind.CONNECT,
                connect=pb.CommandConnect(
                    client_version="t", protocol_version=19, proxy_to_broker_url=f"127.0.0.1:{broker.port}"
                ),
            )
        )
        assert Kind.SUCCESS not in await client.rest()


async def test_the_client_gets_the_answer_of_its_broker() -> None:
    async with PlayedBroker() as broker, running_proxy(native=broker.url) as proxy:
        client = await ProxyClient.open(proxy)
        answer = await client.connect(f"127.0.0.1:{broker.port}")
        assert (answer.connected.server_version, answer.connected.max_message_size) == ("played", 4321)
        client.writer.write(PING * 3)
        await eventually(lambda: len(broker.commands) >= 3)
        broker.writers[-1].write(commands.PONG)
        assert (await client.next()).type == Kind.PONG
        assert (broker.connects[-1].proxy_version, broker.connects[-1].original_principal) == ("Quire proxy", "")
        broker.writers[-1].close()
        assert await client.rest() == []
        assert not proxy.seats


async def test_the_reason_of_a_broker_reaches_the_client() -> None:
    async with PlayedBroker() as broker, running_proxy(native=broker.url) as proxy:
        broker.refuses = "role 'x' may not act for another one"
        answer = await (await ProxyClient.open(proxy)).connect(f"127.0.0.1:{broker.port}")
        assert (answer.error.error, answer.error.message) == (ServerError.AUTHORIZATION, broker.refuses)
        client = await ProxyClient.open(proxy)
        await client.connect()
        failed = (await client.ask(lookup(3))).lookup_response
        assert (failed.request_id, failed.error, failed.message) == (3, ServerError.AUTHORIZATION, broker.refuses)


async def test_a_client_without_connect_is_closed_in_time() -> None:
    bounds = ProxyLimits(handshake_timeout_s=0.1)
    async with PlayedBroker() as broker, running_proxy(native=broker.url, limits=bounds) as proxy:
        client = await ProxyClient.open(proxy)
        client.writer.write(HELLO[:10])
        assert await client.rest() == [Kind.ERROR]


async def test_a_silent_broker_ends_a_connect_and_a_lookup_in_time() -> None:
    bounds = ProxyLimits(connect_timeout_s=0.2, lookup_timeout_s=0.3)
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with running_proxy(native=f"pulsar://127.0.0.1:{port}", limits=bounds) as proxy:
        answer = await (await ProxyClient.open(proxy)).connect(f"127.0.0.1:{port}")
        assert answer.error.error == ServerError.SERVICE_NOT_READY
    silent.close()
    async with PlayedBroker() as broker, running_proxy(native=broker.url, limits=bounds) as proxy:
        client = await ProxyClient.open(proxy)
        await client.connect()
        failed = (await client.ask(lookup(5))).lookup_response
        assert (failed.request_id, failed.error) == (5, ServerError.SERVICE_NOT_READY)
        assert not proxy.parts.stats.lookups_running


async def test_lookups_above_the_limit_are_refused_and_the_others_answered() -> None:
    async with PlayedBroker() as broker, running_proxy(native=broker.url, limits=ProxyLimits(lookups_max=2)) as proxy:
        client = await ProxyClient.open(proxy)
        await client.connect()
        for number in (1, 2, 3):
            client.send(lookup(number))
        refused = (await client.next()).lookup_response
        assert (refused.request_id, refused.error) == (3, ServerError.SERVICE_NOT_READY)
        assert "maxConcurrentLookupRequests" in refused.message
        await eventually(lambda: len(broker.commands) >= 2)
        for asked in broker.commands:
            answer = commands.lookup(asked.lookup.request_id, LookupType.CONNECT, broker.url, authoritative=True)
            broker.writers[0].write(answer)
        answered = {(await client.next()).lookup_response.request_id for _ in range(2)}
        assert answered == {1, 2}
        assert proxy.parts.stats.lookups_rejected == 1
        assert not proxy.parts.stats.lookups_running


async def test_brokers_that_redirect_forever_and_to_foreign_hosts_end_in_an_error() -> None:
    async with PlayedBroker() as broker, running_proxy(native=broker.url) as proxy:
        client = await ProxyClient.open(proxy)
        await client.connect()
        for url, reason in ((broker.url, "another owner"), ("pulsar://example.org:6650", "no registered broker")):
            broker.answer = lambda asked, url=url: commands.lookup(  # type: ignore[misc]  # bound now
                asked.lookup.request_id, LookupType.REDIRECT, url, authoritative=False
            )
            failed = (await client.ask(lookup())).lookup_response
            assert failed.response == LookupType.FAILED
            assert reason in failed.message


@pytest.mark.parametrize("to_client", [True, False])
async def test_a_side_that_does_not_read_stops_the_other_one(to_client: bool) -> None:
    bounds = ProxyLimits(buffer_bytes=64 * 1024)
    async with PlayedBroker() as broker, running_proxy(native=broker.url, limits=bounds) as proxy:
        client = await ProxyClient.open(proxy)
        await client.connect(f"127.0.0.1:{broker.port}")
        writer = broker.writers[-1] if to_client else client.writer
        if not to_client:
            broker.answer = lambda _: b""
            broker.writers[-1].transport.pause_reading()  # type: ignore[attr-defined]
        sent = 64 << 20
        writer.write(b"x" * sent)
        await eventually(lambda: proxy.parts.stats.pauses > 0)
        (session,) = proxy.seats
        pipe: Any = session._pipe
        ends = (pipe._client.transport, pipe._broker.transport)
        assert max(end.get_write_buffer_size() for end in ends) <= bounds.buffer_bytes
        assert proxy.parts.stats.bytes < 32 << 20, "the rest waits at the sender; the kernel has some of it"
        if to_client:  # it reads again, and gets everything
            moved = 0
            while moved < sent:
                moved += len(await asyncio.wait_for(client.reader.read(1 << 20), 10))


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_broker_sent_before_its_end_arrives(loop: str) -> None:
    async def scenario() -> None:
        bounds = ProxyLimits(buffer_bytes=64 * 1024)
        async with PlayedBroker() as broker, running_proxy(native=broker.url, limits=bounds) as proxy:
            client = await ProxyClient.open(proxy)
            await client.connect(f"127.0.0.1:{broker.port}")
            sent = 24 << 20  # more than the sockets hold
            broker.writers[-1].write(b"x" * sent)
            broker.writers[-1].close()  # it sends the rest first
            await eventually(lambda: proxy.parts.stats.pauses > 0)
            taken = 0
            while part := await asyncio.wait_for(client.reader.read(1 << 20), 20):
                taken += len(part)
            assert taken == sent
            await eventually(lambda: not proxy.seats)

    run_on(loop, scenario())


async def test_connections_above_the_limit_are_closed() -> None:
    async with (
        PlayedBroker() as broker,
        running_proxy(native=broker.url, limits=ProxyLimits(connections_max=2)) as proxy,
    ):
        idle = await ProxyClient.open(proxy)
        good = await ProxyClient.open(proxy)
        await good.connect()
        third = await ProxyClient.open(proxy)
        assert await idle.rest() == [], "it has not sent CONNECT"
        await third.connect()
        assert await (await ProxyClient.open(proxy)).rest() == []
        assert (await good.ask(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))).type == Kind.PONG
        assert proxy.seats.dropped == 2


async def test_a_stopped_proxy_answers_its_lookups_and_closes_its_pipes() -> None:
    async with PlayedBroker() as broker, running_proxy(native=broker.url, drain_s=0.2) as proxy:
        piped = await ProxyClient.open(proxy)
        await piped.connect(f"127.0.0.1:{broker.port}")
        asking, idle = await ProxyClient.open(proxy), await ProxyClient.open(proxy)
        await asking.connect()
        await idle.connect()
        asking.send(lookup(4))
        await eventually(lambda: bool(broker.commands))
        broker.writers[0].write(b"last bytes")
        await eventually(lambda: proxy.parts.stats.bytes == 10)
        ended = asyncio.create_task(proxy.stop())
        assert await idle.rest() == []
        asked = broker.commands[0].lookup.request_id
        broker.writers[-1].write(commands.lookup(asked, LookupType.CONNECT, broker.url, authoritative=True))
        assert await asking.rest() == [Kind.LOOKUP_RESPONSE]
        assert await piped.reader.read() == b"last bytes"
        await ended
        with pytest.raises(OSError):
            await ProxyClient.open(proxy)


# credentials


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, "HS256")


def secured(folder: Path) -> AccessSettings:
    key = folder / "secret.key"
    key.write_bytes(SECRET)
    checks = AuthenticationSettings(TokenSettings(secret_key=f"file://{key}"))
    return AccessSettings(authentication=checks)


@pytest.mark.parametrize("forwards", [False, True])
async def test_brokers_get_the_proxys_credentials_and_the_clients_name(tmp_path: Path, forwards: bool) -> None:
    own = TowardsBrokers(method="token", secret=token("proxy"))
    given: dict[str, Any] = {"access": secured(tmp_path), "towards": own, "forwards_credentials": forwards}
    async with PlayedBroker() as broker, running_proxy(native=broker.url, **given) as proxy:
        shown = {"auth_method_name": "token", "auth_data": token("app").encode()}
        for target in (f"127.0.0.1:{broker.port}", ""):
            client = await ProxyClient.open(proxy)
            await client.connect(target, **shown)
            client.send(lookup())
            await eventually(lambda: bool(broker.commands))
            broker.commands.clear()
            got = broker.connects[-1]
            assert (got.auth_method_name, got.auth_data.decode()) == ("token", token("proxy"))
            assert got.original_principal == "app"
            assert (got.original_auth_method, got.original_auth_data) == (
                ("token", token("app")) if forwards else ("", "")
            )


@pytest.mark.parametrize("forwards", [False, True])
async def test_a_password_is_checked_by_the_proxy_and_passed_on_if_it_forwards(tmp_path: Path, forwards: bool) -> None:
    users = tmp_path / "users"
    users.write_text("app:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n")  # `secret`
    access = AccessSettings(authentication=AuthenticationSettings(passwords=str(users)))
    own = TowardsBrokers(method="token", secret=token("proxy"))
    given: dict[str, Any] = {"access": access, "towards": own, "forwards_credentials": forwards}
    async with PlayedBroker() as broker, running_proxy(native=broker.url, **given) as proxy:
        target = f"127.0.0.1:{broker.port}"
        for wrong in (b"app:Secret", b"other:secret", b"app"):
            refused = await (await ProxyClient.open(proxy)).connect(target, auth_method_name="basic", auth_data=wrong)
            assert (refused.type, refused.error.error) == (Kind.ERROR, ServerError.AUTHENTICATION)
        assert not broker.connects
        for _ in range(2):  # the second time the password is known
            client = await ProxyClient.open(proxy)
            assert (
                await client.connect(target, auth_method_name="basic", auth_data=b"app:secret")
            ).type == Kind.CONNECTED
            got = broker.connects[-1]
            assert (got.auth_method_name, got.original_principal) == ("token", "app")
            assert (got.original_auth_method, got.original_auth_data) == (
                ("basic", "app:secret") if forwards else ("", "")
            )


async def test_a_proxy_with_a_password_reads_a_changed_file_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "own"
    own = TowardsBrokers(method="basic", secret_path=str(file))
    given: dict[str, Any] = {"access": secured(tmp_path), "towards": own}
    shown = {"auth_method_name": "token", "auth_data": token("app").encode()}
    async with PlayedBroker() as broker, running_proxy(native=broker.url, **given) as proxy:
        target = f"127.0.0.1:{broker.port}"
        for password in ("first", "se:cond"):
            file.write_text(json.dumps({"userId": "proxy", "password": password}))
            answer = await (await ProxyClient.open(proxy)).connect(target, **shown)
            assert answer.type == Kind.CONNECTED, answer
            got = broker.connects[-1]
            assert (got.auth_method_name, got.auth_data.decode()) == ("basic", f"proxy:{password}")
            assert got.original_principal == "app"
        file.write_text("proxy:secret")
        refused = await (await ProxyClient.open(proxy)).connect(target, **shown)
        assert (refused.type, refused.error.error) == (Kind.ERROR, ServerError.SERVICE_NOT_READY)
        assert "userId" in refused.error.message and "secret" not in refused.error.message


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"auth_method_name": "token", "auth_data": b"no token"},
        {"auth_method_name": "token", "auth_data": jwt.encode({"sub": "app"}, b"x" * 32, "HS256").encode()},
        {"auth_method_name": "token", "auth_data": token("app").encode(), "original_principal": "admin"},
    ],
)
async def test_a_client_that_does_not_authenticate_reaches_no_broker(tmp_path: Path, shown: dict[str, Any]) -> None:
    own = TowardsBrokers(method="token", secret=token("proxy"))
    given: dict[str, Any] = {"access": secured(tmp_path), "towards": own}
    async with PlayedBroker() as broker, running_proxy(native=broker.url, **given) as proxy:
        for target in ("", f"127.0.0.1:{broker.port}"):
            answer = await (await ProxyClient.open(proxy)).connect(target, **shown)
            assert (answer.type, answer.error.error) == (Kind.ERROR, ServerError.AUTHENTICATION)
        assert not broker.connects
        assert proxy.parts.stats.authentications_failed == 2


async def test_a_client_whose_token_expires_is_disconnected(tmp_path: Path) -> None:
    access = secured(tmp_path)
    assert access.authentication is not None
    access = replace(access, authentication=replace(access.authentication, check_interval_s=0.05))
    own = TowardsBrokers(method="token", secret=token("proxy"))
    async with PlayedBroker() as broker, running_proxy(native=broker.url, access=access, towards=own) as proxy:
        client = await ProxyClient.open(proxy)
        await client.connect(f"127.0.0.1:{broker.port}", auth_method_name="token", auth_data=token("app").encode())
        (tmp_path / "secret.key").write_bytes(b"another secret of tests that is long enough")
        assert await client.rest() == []


async def test_tls_on_both_sides(tmp_path: Path) -> None:
    import ssl

    authority = Authority(tmp_path)
    files = authority.issue("server", "127.0.0.1", "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    tls = ServerTlsSettings(TlsFiles(certificate=files.certificate, key=files.key))
    ports = replace(PORTS, port_tls=0)
    broker = PlayedBroker()
    server = await asyncio.start_server(broker._serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    given: dict[str, Any] = {
        "ports": ports,
        "access": AccessSettings(tls=tls),
        "towards": TowardsBrokers(TlsFiles(trust=authority.trust)),
    }
    async with running_proxy(native=f"pulsar+ssl://127.0.0.1:{port}", **given) as proxy:
        client = await ProxyClient.open(proxy, tls=ssl.create_default_context(cafile=authority.trust))
        assert (await client.connect(f"127.0.0.1:{port}")).type == Kind.CONNECTED
        large = pb.CommandError(request_id=1, error=0, message="x" * 900_000)
        broker.answer = lambda _: encode(pb.BaseCommand(type=Kind.ERROR, error=large))
        for _ in range(5):
            assert (await client.ask(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))).error == large
        client.writer.close()
    stranger = Authority(tmp_path, "stranger")
    given["towards"] = TowardsBrokers(TlsFiles(trust=stranger.trust))
    async with running_proxy(native=f"pulsar+ssl://127.0.0.1:{port}", **given) as proxy:
        client = await ProxyClient.open(proxy, tls=ssl.create_default_context(cafile=authority.trust))
        answer = await client.connect(f"127.0.0.1:{port}")
        assert (answer.type, answer.error.error) == (Kind.ERROR, ServerError.SERVICE_NOT_READY)
        assert "TLS" in answer.error.message
    server.close()


# HTTP


async def test_requests_are_forwarded_to_the_owner_of_their_topic(pair: BrokerWorld) -> None:
    first, second = pair.brokers
    owner = await Wire.open(second)
    await owner.lookup()
    assert (await owner.produce()).type == Kind.PRODUCER_SUCCESS
    path = "/admin/v2/persistent/public/default/owned/stats"
    async with running_proxy(SimMetadataStore(pair.server)) as proxy, aiohttp.ClientSession() as session:
        for _ in range(2):  # each broker is asked once, and one redirects
            async with session.get(proxy.ports.urls.http + path) as answer:
                assert answer.status == 200
                assert len((await answer.json())["publishers"]) == 1
        created = "/admin/v2/persistent/public/default/made/partitions"
        async with session.put(proxy.ports.urls.http + created, json=3) as answer:
            assert answer.status == 204
        async with session.get(proxy.ports.urls.http + created) as answer:
            assert json.loads(await answer.text())["partitions"] == 3
        async with session.get(proxy.ports.urls.http + "/admin/v2/persistent/public/default/absent/stats") as answer:
            assert answer.status == 404
        async with session.put(proxy.ports.urls.http + created, json="x" * (2 << 20)) as answer:
            assert answer.status == 413
        async with session.get(proxy.ports.urls.http + "/anything") as answer:
            assert answer.status == 404
        async with session.get(proxy.ports.urls.http + "/metrics") as answer:
            assert "pulsar_proxy_active_connections 0.0" in await answer.text()
    assert first.urls.http != second.urls.http
