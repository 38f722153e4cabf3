"""Servers in this process, and the checks after each example: no error in the log, other clients are served.

HTTP: each request gets a response, but never 500. Binary protocols: the connection continues or ends; another client is
served; all data acknowledged before can be read, also after a restart.
"""

import asyncio
import re
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st

from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.web import BookieWeb
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import NO_ENTRY, DigestType, EntryId
from quire_bookie.server import BookieSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.tokens import TokenSettings
from quire_bookie.wire import client_v3
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_broker.admin.web import make_app
from quire_broker.security.settings import AccessSettings, AuthenticationSettings
from quire_broker.server.broker import BrokerSettings
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.standalone import RunningStandalone, StandaloneSettings, run_standalone, with_quorums
from quire_broker.topic.topic import TopicSettings
from quire_broker.topic.topics import TopicsSettings
from quire_broker.wire.frames import FrameDecoder, MessageFrame, encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb_broker
from tests.fuzz import bookkeeper, pulsar
from tests.fuzz.requests import requests
from tests.fuzz.tokens import ROLE, SECRET, tokens
from tests.fuzz.watch import Findings
from tests.support.bookie_world import BookieWorld, RawPeer
from tests.support.broker_wire import Wire, kind_of_next, received, stored
from tests.support.roomy_disk import NEVER_FULL

HANGS_AFTER_S = 60
"""A server without a response after this time hangs."""
KEPT_ENTRIES = 20
_OPEN = re.compile("^GET /(healthz|readyz|metrics/?|console(/.*)?)$")
_PLAIN = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_PONG = encode(pb_broker.BaseCommand(type=Kind.PONG, pong=pb_broker.CommandPong()))


async def exchanged(port: int, data: bytes) -> bytes:
    """Send `data` and return the bytes received until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), HANGS_AFTER_S)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def asked(port: int, request: bytes) -> int:
    """Send an HTTP request and return the status; 0 if the connection ends without a response.

    Reads the whole response; of a stream of events, which does not end by itself, the first event.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    try:
        writer.write(request)
        async with asyncio.timeout(HANGS_AFTER_S):
            head = await _read_until(reader, b"\r\n\r\n")
            await (_read_until(reader, b"\n\n") if b"text/event-stream" in head else reader.read())
    except ConnectionError:
        return 0
    finally:
        writer.transport.abort()
    return int(head[9:12]) if head.startswith(b"HTTP/1.") else 0


async def _read_until(reader: asyncio.StreamReader, end: bytes) -> bytes:
    """Return the bytes up to and including `end`, or until the connection ends."""
    try:
        return await reader.readuntil(end)
    except asyncio.IncompleteReadError as error:
        return error.partial


def own_tasks() -> set["asyncio.Task[Any]"]:
    """Return the lasting tasks of the servers: unnamed ones are short-lived, and so is the load of changed settings."""
    return {task for task in asyncio.all_tasks() if not task.get_name().startswith(("Task-", "changed settings"))}


class Target:
    """Runs a server, sends it examples, and checks it. Everything runs on one loop."""

    name: ClassVar[str]

    def __init__(self, folder: Path, findings: Findings) -> None:
        self.folder = folder
        self.findings = findings
        self.strategy: st.SearchStrategy[Any]
        self.outcomes: Counter[object] = Counter()
        """Statuses of responses, or ends of sessions: show whether examples get past the first check."""

    async def start(self) -> None:
        """Start the server and define the examples."""
        raise NotImplementedError

    async def send(self, example: Any) -> None:
        """Send one example, then check."""
        raise NotImplementedError

    async def check_all(self) -> None:
        """Run the slow checks, including a restart; the last call before `stop`."""

    async def stop(self) -> None:
        """End the server."""
        raise NotImplementedError


class _Standalone(Target):
    """Runs a broker with one bookie and its metadata, on a real folder."""

    running: RunningStandalone
    access = AccessSettings()

    async def start(self) -> None:
        """Start on free ports."""
        broker = BrokerSettings(
            listen="127.0.0.1",
            port=0,
            http_port=0,
            advertise="127.0.0.1",
            access=self.access,
            topics=TopicsSettings(
                topic=TopicSettings(deduplication=True, subscriptions=DispatchSettings(batch_index_acks=True)),
                ledger=with_quorums(ManagedLedgerSettings(), 1),
            ),
        )
        pattern = BookieSettings(
            data_dir="", disks=DiskRules(threshold=NEVER_FULL), listen="127.0.0.1", advertise="127.0.0.1"
        )
        data = self.folder / self.name.replace(" ", "-")
        data.mkdir(exist_ok=True)
        self.disk = LocalDisk()
        self.metadata = await LocalMetadataStore.open(data / "metadata")
        self.running = await run_standalone(
            StandaloneSettings(str(data), 1, bookie_port=0, bookie=pattern, broker=broker),
            metadata=self.metadata,
            disk=self.disk,
            clock=SystemClock(),
            chance=SystemChance(),
        )
        await self._prepare()
        self.findings.keep_alive(own_tasks())

    async def _prepare(self) -> None:
        for path, body in (
            ("/admin/v2/tenants/fuzz", b'{"allowedClusters": ["standalone"]}'),
            ("/admin/v2/namespaces/fuzz/ns", b""),
            ("/admin/v2/persistent/fuzz/ns/p/partitions", b"2"),
            ("/admin/v2/persistent/fuzz/ns/t", b""),
        ):
            await self.put(path, body)

    async def put(self, path: str, body: bytes) -> int:
        """Send a PUT outside of examples."""
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        return await asked(self.http_port, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    @property
    def http_port(self) -> int:
        """The HTTP port of the broker."""
        port = self.running.broker.http_port
        assert port is not None
        return port

    async def check_ready(self) -> None:
        """Check that the broker reports ready and that no background task failed."""
        for path in (b"healthz", b"readyz"):
            status = await asked(self.http_port, b"GET /" + path + _PLAIN)
            assert status == 200, path

    async def stop(self) -> None:
        """End it in order."""
        self.findings.keep_alive(set())
        await self.running.stop()
        await self.metadata.close()
        self.disk.close()


class BrokerHttp(_Standalone):
    """The HTTP port of a standalone."""

    name = "broker http"

    async def start(self) -> None:
        """Serve; routes are those of the table."""
        await super().start()
        self.strategy = st.lists(requests(_routes(make_app(self.running.broker))), min_size=1, max_size=4)

    async def send(self, example: list[bytes]) -> None:
        """Send requests about a topic with messages and a subscription; each must get a response other than 500."""
        await self._prepare()
        await self._fill_topic()
        for request in example:
            status = await asked(self.http_port, request)
            self.outcomes[status] += 1
            self.findings.check()
            assert 200 <= status < 500 or status in (501, 503), status
        await self.check_ready()

    async def _fill_topic(self) -> None:
        """Write to the topic; tenant and policies left by the last example may refuse that."""
        await self.put("/admin/v2/persistent/fuzz/ns/t/subscription/s", b'"earliest"')
        wire = await Wire.reach(self.running.broker.port)
        try:
            for command in pulsar.opening(0, mark=False, consumer_first=False)[:2]:
                answer = await wire.answer(command)
            if answer.type == Kind.PRODUCER_SUCCESS:
                wire.writer.write(pulsar.last_send())
                await wire.next()
        except (EOFError, ConnectionError):
            self.outcomes["no messages"] += 1
        finally:
            wire.writer.transport.abort()

    async def check_all(self) -> None:
        """Check that the stored state can be loaded again."""
        await self.stop()
        await self.start()
        await self.check_ready()
        self.findings.check()


def _routes(app: Any) -> list[str]:
    found = {f"{route.method} {route.resource.canonical}" for route in app.router.routes() if route.method != "HEAD"}
    return sorted(re.sub(r"\{(\w+):[^/]*\}", r"{\1}", route) for route in found)


class PulsarSessions(_Standalone):
    """The port of the Pulsar protocol."""

    name = "pulsar"
    strategy = pulsar.sessions

    async def start(self) -> None:
        """Start with messages that must be kept."""
        await super().start()
        self.strategy = pulsar.sessions
        self.beside = await Wire.open(self.running.broker)
        for topic in pulsar.TOPICS:
            lookup = pb_broker.CommandLookupTopic(topic=topic, request_id=1)
            await self.beside.answer(pb_broker.BaseCommand(type=Kind.LOOKUP, lookup=lookup))
        if not hasattr(self, "kept"):
            await self.beside.lookup()
            answer = await self.beside.produce()
            assert answer.type == Kind.PRODUCER_SUCCESS, answer
            await stored(self.beside, range(KEPT_ENTRIES))
            self.kept = list(range(KEPT_ENTRIES))

    async def send(self, example: list[pulsar.Session]) -> None:
        """Run sessions concurrently; another client must be served."""
        await asyncio.gather(*map(self._run_session, example))
        self.beside.send(pulsar.PING)
        while await kind_of_next(self.beside) != Kind.PONG:
            continue  # of the broker's own PING
        self.findings.check()

    async def _run_session(self, session: pulsar.Session) -> None:
        wire = await Wire.reach(self.running.broker.port)
        try:
            for command in session.opening:
                await wire.answer(command)
            wire.writer.write(b"".join(session.rest))
            if session.waits:
                wire.writer.write(pulsar.last_send())
                while not await self._is_last(wire):
                    continue
            wire.send(pulsar.PING)
            wire.writer.write_eof()
            ended = await asyncio.wait_for(wire.reader.read(), HANGS_AFTER_S)
            self.outcomes["answered" if _PONG in ended else "closed"] += 1
        except (EOFError, ConnectionError):
            self.outcomes["closed"] += 1
        finally:
            wire.writer.transport.abort()

    async def _is_last(self, wire: Wire) -> bool:
        """Return whether the next frame is the response to the last SEND; EOFError if the broker closes instead."""
        frame = await wire.next()
        if isinstance(frame, MessageFrame):
            self.outcomes["message"] += 1
            return False
        self.outcomes[Kind(frame.type).name] += 1
        if frame.type == Kind.CLOSE_PRODUCER:
            return True  # of another client that wants the topic for itself
        inner = frame.send_receipt if frame.type == Kind.SEND_RECEIPT else frame.send_error
        return inner.sequence_id == pulsar.LAST_SEQUENCE_ID

    async def check_all(self) -> None:
        """Check that the messages can be read, also after a restart."""
        for _ in range(2):
            await self.check_ready()
            reader = await Wire.open(self.running.broker)
            await reader.lookup()
            assert await received(reader, KEPT_ENTRIES) == self.kept
            reader.writer.close()
            await self.stop()
            await self.start()
        self.findings.check()

    async def stop(self) -> None:
        """End it in order."""
        self.beside.writer.close()
        await super().stop()


class Guarded(_Standalone):
    """Both ports of a standalone that requires tokens; clients have no valid one."""

    name = "guarded"
    access = AccessSettings(
        authentication=AuthenticationSettings(TokenSettings(secret_key="data:;base64," + b64encode(SECRET).decode())),
        authorization=True,
        super_users=frozenset({ROLE}),
    )

    async def start(self) -> None:
        """Serve; routes are those of the table."""
        await super().start()
        routes = [route for route in _routes(make_app(self.running.broker)) if not _OPEN.search(route)]
        self.strategy = st.tuples(tokens(), requests(routes), pulsar.sessions)

    async def _prepare(self) -> None:
        """Prepare nothing, as that would need a token."""

    async def send(self, example: tuple[bytes, bytes, list[pulsar.Session]]) -> None:
        """Present a token on both ports; neither may execute the request."""
        token, request, sessions = example
        line, _, rest = request.partition(b"\r\n")
        shown = b"Authorization: Bearer " + token.replace(b"\r", b"").replace(b"\n", b"") + b"\r\n"
        status = await asked(self.http_port, line + b"\r\n" + shown + rest)
        self.outcomes[status] += 1
        assert 400 <= status < 500 or not status, status  # a long header gets its response before all of it is read
        connect = pb_broker.CommandConnect(client_version="fuzz", auth_method_name="token", auth_data=token)
        first = encode(pb_broker.BaseCommand(type=Kind.CONNECT, connect=connect))
        answer = await exchanged(self.running.broker.port, first + b"".join(sessions[0].rest))
        frames = FrameDecoder(1 << 20).feed(answer)
        assert [getattr(frame, "type", None) for frame in frames] in ([], [Kind.ERROR]), frames
        self.outcomes["refused" if frames else "closed"] += 1
        await self.check_ready()
        self.findings.check()


class _Bookie(Target):
    """Runs a bookie on simulated disks."""

    async def start(self) -> None:
        """Serve."""
        self.world = BookieWorld()
        await self.world.start()
        self.findings.keep_alive(own_tasks())

    async def stop(self) -> None:
        """End it in order."""
        self.findings.keep_alive(set())
        await self.world.stop()

    @property
    def port(self) -> int:
        """The port of the bookie."""
        assert self.world.running is not None
        return self.world.running.port


class BookieHttp(_Bookie):
    """The HTTP port of a bookie."""

    name = "bookie http"

    async def start(self) -> None:
        """Serve; routes are those of the table."""
        await super().start()
        assert self.world.session is not None and self.world.running is not None
        self.web = BookieWeb(
            self.world.session, self.world.disk, {"bookiePort": 1}, clock=SystemClock(), chance=SystemChance()
        )
        listening = listen("127.0.0.1", 0)
        await self.web.open(listening)
        self.web.serve(self.world.running)
        self.http_port = port_of(listening)
        await self._add_one()
        self.strategy = st.lists(requests(_routes(self.web.app)), min_size=1, max_size=4)

    async def _add_one(self) -> None:
        peer = await RawPeer.connect(self.port)
        await peer.ask(client_v3.add(1, bookkeeper.KEPT, EntryId(0), bookkeeper.KEPT_KEY, _kept(0)))
        await peer.close()

    async def send(self, example: list[bytes]) -> None:
        """Send requests; each must get a response other than 500."""
        for request in example:
            status = await asked(self.http_port, request)
            self.outcomes[status] += 1
            self.findings.check()
            assert 200 <= status < 500 or status in (501, 503), status
        assert await asked(self.http_port, b"GET /healthz" + _PLAIN) == 200

    async def stop(self) -> None:
        """End it in order."""
        self.findings.keep_alive(set())
        await self.web.close()
        await super().stop()


class BookieSessions(_Bookie):
    """The port of BookKeeper's protocol."""

    name = "bookkeeper"

    async def start(self) -> None:
        """Start with entries that must be kept."""
        await super().start()
        self.strategy = st.lists(bookkeeper.sessions(), min_size=1, max_size=3)
        self.beside = await RawPeer.connect(self.port)
        for number in range(KEPT_ENTRIES):
            add = client_v3.add(number, bookkeeper.KEPT, EntryId(number), bookkeeper.KEPT_KEY, _kept(number))
            assert pb.Response.FromString((await self.beside.ask(add))[4:]).status == pb.EOK

    async def send(self, example: list[tuple[bytes, ...]]) -> None:
        """Run sessions concurrently; another client must be able to read the kept entries."""
        for answer in await asyncio.gather(*(exchanged(self.port, b"".join(session)) for session in example)):
            self.outcomes["answered" if answer else "closed"] += 1
        await self._check(self.beside, KEPT_ENTRIES - 1)
        self.findings.check()

    async def _check(self, peer: RawPeer, number: int) -> None:
        answer = pb.Response.FromString((await peer.ask(client_v3.read(1, bookkeeper.KEPT, EntryId(number))))[4:])
        assert (answer.status, answer.readResponse.body) == (pb.EOK, _kept(number))

    async def check_all(self) -> None:
        """Check that the entries can be read, also after a power cut."""
        for _ in range(2):
            peer = await RawPeer.connect(self.port)
            for number in range(KEPT_ENTRIES):
                await self._check(peer, number)
            await peer.close()
            self.findings.check()
            self.findings.keep_alive(set())
            self.findings.expected = CRASHED  # the dead process reports that its disk is gone, sooner or later
            await self.world.crash()
            self.findings.found.clear()
            await self.world.restart()
            self.findings.keep_alive(own_tasks())
            self.beside = await RawPeer.connect(self.port)
        self.findings.check()


CRASHED = "the simulated process has crashed"
_DIGEST = Digest(DigestType.CRC32C, b"kept")


def _kept(number: int) -> bytes:
    payload = b"kept %d" % number
    return _DIGEST.encode_entry(bookkeeper.KEPT, EntryId(number), NO_ENTRY, len(payload), [payload]) + payload


TARGETS: tuple[type[Target], ...] = (BrokerHttp, PulsarSessions, Guarded, BookieHttp, BookieSessions)
