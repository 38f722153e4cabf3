"""etcd as an attacker: in the middle, as another server, with another user's rights, with values of other clients.

Its refusals come from real etcds. What no real etcd sends comes from a server that speaks gRPC and lies.
"""

import asyncio
import json
import logging
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from quire_bookie.errors import (
    ConfigError,
    MetadataFormatError,
    MetadataUnavailableError,
    MetadataUnknownError,
)
from quire_bookie.limits import MIB
from quire_bookie.metadata import layout
from quire_bookie.metadata.etcd.connection import TooLargeError
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc
from quire_bookie.metadata.etcd.store import EtcdMetadataStore
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.metadata.store import Event, EventKind, Watch
from quire_bookie.model import LedgerId
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.certificates import Authority, Pem
from tests.support.etcd_server import EtcdServer, require_etcd

WAIT_S = 30
SECRET = "correct-horse-battery"
QUICK = MetadataSettings(connect_timeout_s=1, operation_timeout_s=1)
HEADER = rpc.ResponseHeader(revision=5, cluster_id=1)
Answer = Callable[[bytes], bytes]


class Liar(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types here
    """Answers the first Range as etcd does, and then each method with a given response. A stream gets all of its."""

    def __init__(self, answers: dict[str, bytes], stream: list[bytes]) -> None:
        self._answers = answers
        self._stream = stream
        self._opened = False
        self.streams = 0
        self._more = asyncio.Event()

    async def opened(self, streams: int) -> None:
        """Wait until `streams` streams were opened."""
        async with asyncio.timeout(WAIT_S):
            while self.streams < streams:
                self._more.clear()
                await self._more.wait()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        if name == "Watch":
            return grpc.stream_stream_rpc_method_handler(self._answer_stream)

        async def answer(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            if name == "Range" and not self._opened:
                self._opened = True
                return rpc.RangeResponse(header=HEADER).SerializeToString()
            if name not in self._answers:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not told")
            return self._answers[name]

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _answer_stream(self, requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        self.streams += 1
        self._more.set()
        await anext(requests)
        for one in self._stream:
            yield one
        async for _request in requests:
            pass


@asynccontextmanager
async def lying(
    *stream: bytes, compressed: bool = False, settings: MetadataSettings = QUICK, **answers: bytes
) -> AsyncIterator[tuple[EtcdMetadataStore, Liar]]:
    """Open a store at a server that sends false responses from then on."""
    liar = Liar(answers, list(stream))
    compression = grpc.Compression.Gzip if compressed else None
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)], compression=compression)
    server.add_generic_rpc_handlers((liar,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        store = await opened(f"etcd://127.0.0.1:{port}", settings)
        try:
            yield store, liar
        finally:
            await store.close()
    finally:
        await server.stop(0)


async def opened(url: str, settings: MetadataSettings) -> EtcdMetadataStore:
    store = await open_metadata_store(url, settings)
    assert isinstance(store, EtcdMetadataStore)
    return store


async def event_of(watch: Watch) -> Event:
    async with asyncio.timeout(WAIT_S):
        return await anext(aiter(watch))


def node(key: bytes, value: bytes = b"", **fields: int) -> rpc.KeyValue:
    return rpc.KeyValue(key=key, value=value, version=1, **fields)


def page(*nodes: rpc.KeyValue, more: bool = False) -> bytes:
    return rpc.RangeResponse(header=HEADER, kvs=nodes, more=more).SerializeToString()


def changes(*keys: bytes, revision: int = 6, at: int = 6, created: bool = False) -> bytes:
    events = [rpc.Event(kv=node(key, mod_revision=at)) for key in keys]
    header = rpc.ResponseHeader(revision=revision, cluster_id=1)
    return rpc.WatchResponse(header=header, events=events, created=created).SerializeToString()


# responses that no etcd sends


async def test_a_read_whose_response_does_not_parse_is_unavailable() -> None:
    async with lying(Range=b"\xff\xff\xff") as (store, _):
        with pytest.raises(MetadataUnavailableError, match="does not parse"):
            await store.get("/a")


@pytest.mark.parametrize("expected", [None, 3])
async def test_a_write_whose_response_does_not_parse_may_have_happened(expected: int | None) -> None:
    async with lying(Put=b"\xff", Txn=b"\xff") as (store, _):
        with pytest.raises(MetadataUnknownError, match="does not parse"):
            await store.put("/a", b"", expected=expected)


@pytest.mark.parametrize("compressed", [False, True])
async def test_a_response_is_not_taken_beyond_its_limit(compressed: bool) -> None:
    settings = MetadataSettings(operation_timeout_s=WAIT_S)
    large = page(node(b"/a", bytes(65 * MIB)))
    async with lying(Range=large, compressed=compressed, settings=settings) as (store, _):
        with pytest.raises(TooLargeError, match="larger than max"):
            await store.get("/a")


@pytest.mark.parametrize("listed", [page(more=True), page(node(b"/a"), more=True), page(node(b"zzz"), node(b"/b"))])
async def test_a_listing_that_does_not_progress_ends(listed: bytes) -> None:
    async with lying(Range=listed) as (store, _):
        with pytest.raises(MetadataUnavailableError, match="outside of its range"):
            async for _page in store.scan("/a"):
                pass
        with pytest.raises(MetadataUnavailableError, match="outside of its range"):
            await store.children("/")


@pytest.mark.parametrize(("lease", "ttl"), [(0, 0), (0, 30), (5, 0), (5, -1)])
async def test_a_session_takes_no_lease_that_does_not_bind_its_nodes(lease: int, ttl: int) -> None:
    granted = rpc.LeaseGrantResponse(header=HEADER, ID=lease, TTL=ttl).SerializeToString()
    async with lying(LeaseGrant=granted, Put=rpc.PutResponse(header=HEADER).SerializeToString()) as (store, _):
        with pytest.raises(MetadataUnavailableError, match="etcd granted lease"):
            await store.put("/a", b"", ephemeral=True)


@pytest.mark.parametrize("token", ["", "a\nb", "a\x00b", "schl\u00fcssel"])
async def test_a_token_that_cannot_be_a_header_is_not_kept(token: str) -> None:
    answer = rpc.AuthenticateResponse(header=HEADER, token=token).SerializeToString()
    settings = MetadataSettings(connect_timeout_s=1, operation_timeout_s=1, username="u", password=SECRET)
    with pytest.raises(MetadataUnavailableError, match="not printable ASCII") as caught:
        async with lying(settings=settings, Authenticate=answer):
            pass
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize("broken", [b"\xff\xff", changes(b"/a/1", at=-5), changes(b"/a/1", at=2**63 - 1)])
async def test_a_watch_survives_responses_that_no_etcd_sends(broken: bytes) -> None:
    first = changes(created=True, revision=5)
    async with lying(first, changes(b"/a/1"), broken) as (store, liar):
        watch = await store.watch("/a/")
        assert await event_of(watch) == Event(EventKind.CREATED, "/a/1")
        await liar.opened(4)
        seen = set()
        async with asyncio.timeout(WAIT_S):
            async for event in watch:
                seen.add(event)
                if len(seen) == 2:
                    break
        assert seen == {Event(EventKind.CREATED, "/a/1"), Event(EventKind.RESYNC, "/a/")}, "the revision went back"


async def test_a_watch_whose_streams_break_at_once_is_not_opened_in_a_loop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "quire.metadata.etcd")
    async with lying(changes(created=True, revision=5), b"\xff", Range=page()) as (store, liar):
        monkeypatch.setattr("quire_bookie.metadata.etcd.connection.METADATA_RETRY_BACKOFF_S", (3600.0, 3600.0))
        await store.watch("/a/")
        async with asyncio.timeout(WAIT_S):
            while "opening it again" not in caplog.text:
                await store.get("/a")
        for _ in range(20):
            await store.get("/a")
        assert liar.streams == 1, "it pauses first"


async def test_a_flood_of_events_is_bounded() -> None:
    flood = changes(*(b"/a/%d" % number for number in range(1_000)))
    async with lying(changes(created=True, revision=5), *[flood] * 30, changes(b"/a/last")) as (store, _):
        watch = await store.watch("/a/")
        kinds = set()
        while (event := await event_of(watch)).key != "/a/last":
            kinds.add(event.kind)
            await asyncio.sleep(0)
        assert kinds <= {EventKind.CREATED, EventKind.RESYNC}


# TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def etcd(folder: Path, pem: Pem | None) -> AsyncIterator[EtcdServer]:
    await asyncio.to_thread(folder.mkdir)
    files = () if pem is None else ("--cert-file", pem.certificate, "--key-file", pem.key)
    server = EtcdServer(require_etcd(), folder, extra=files, scheme="http" if pem is None else "https")
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("another authority's", "CERTIFICATE_VERIFY_FAILED"),
        ("another host's", "Hostname Verification Check failed"),
        ("expired", "CERTIFICATE_VERIFY_FAILED"),
        ("none: plaintext", "Handshake read failed"),
    ],
)
async def test_an_etcd_that_does_not_prove_who_it_is_gets_nothing(
    authority: Authority, tmp_path: Path, kind: str, reason: str
) -> None:
    signer = Authority(tmp_path, "stranger") if kind.startswith("another authority") else authority
    host = "other.example" if kind == "another host's" else "127.0.0.1"
    pem = None if kind.startswith("none") else signer.issue("etcd", host, expired=kind == "expired")
    settings = MetadataSettings(ca_path=authority.trust, connect_timeout_s=1, username="root", password=SECRET)
    async with etcd(tmp_path / "etcd", pem) as server:
        for url in (f"etcd:https://{server.endpoint}", f"etcd://{server.endpoint}"):  # the setting turns TLS on, too
            with pytest.raises(MetadataUnavailableError, match=reason):
                await open_metadata_store(url, settings)


async def test_a_client_in_plaintext_gets_nothing_from_an_etcd_with_tls(authority: Authority, tmp_path: Path) -> None:
    async with etcd(tmp_path / "etcd", authority.issue("etcd", "127.0.0.1")) as server:
        with pytest.raises(MetadataUnavailableError, match="can be reached"):
            await open_metadata_store(f"etcd://{server.endpoint}", QUICK)


# users


class Guarded(EtcdServer):
    """An etcd with users: root, and `quire`, whose role has what `grant` gave."""

    def begin(self) -> None:
        self.start()
        for name, password in (("root", "root"), ("quire", SECRET)):
            self.call("auth/user/add", {"name": name, "password": password})
        self.call("auth/role/add", {"name": "role"})
        self.call("auth/user/grant", {"user": "root", "role": "root"})
        self.call("auth/user/grant", {"user": "quire", "role": "role"})
        self.call("auth/enable", {})

    def as_root(self, path: str, **body: Any) -> dict[str, Any]:
        token = str(self.call("auth/authenticate", {"name": "root", "password": "root"})["token"])
        headers = {"Content-Type": "application/json", "Authorization": token}
        request = urllib.request.Request(f"http://{self.endpoint}/v3/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def grant(self, first: str, end: str) -> None:
        allowed = {
            "permType": 2,
            "key": b64encode(first.encode()).decode(),
            "range_end": b64encode(end.encode()).decode(),
        }
        self.as_root("auth/role/grant", name="role", perm=allowed)

    def set_password(self, password: str) -> None:
        self.as_root("auth/user/changepw", name="quire", password=password)

    def put(self, key: bytes, value: bytes) -> None:
        self.as_root("kv/put", key=b64encode(key).decode(), value=b64encode(value).decode())


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    found = Guarded(require_etcd(), tmp_path)
    found.begin()
    yield found
    found.kill()


def user(password: str = SECRET) -> MetadataSettings:
    return MetadataSettings(
        username="quire", password=password, connect_timeout_s=5, operation_timeout_s=5, session_timeout_s=3
    )


async def eventually(attempt: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await attempt()
            except MetadataUnavailableError:
                await asyncio.sleep(0.05)  # between two attempts


async def test_a_user_without_the_rights_gets_an_error_at_the_start(guarded: Guarded) -> None:
    guarded.grant("/ledgers", "/ledgers0")
    for settings, reason in (
        (user(), "grant the user"),
        (user("wrong-word"), "authentication failed"),
        (QUICK, "empty"),
    ):
        with pytest.raises(ConfigError, match=reason) as caught:
            await open_metadata_store(guarded.url, settings)
        assert SECRET not in repr(caught.value) and "wrong-word" not in repr(caught.value)
        assert SECRET not in repr(settings)


async def test_a_withdrawn_user_is_as_an_etcd_that_is_away(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.grant("/", "0")
    store = await opened(guarded.url, user())
    watch = await store.watch("/ledgers/")
    await store.put("/ledgers/1", b"", ephemeral=True)
    assert await event_of(watch) == Event(EventKind.CREATED, "/ledgers/1")
    for withdraw, restore in (
        (lambda: guarded.set_password("another"), lambda: guarded.set_password(SECRET)),
        (
            lambda: guarded.as_root("auth/user/revoke", name="quire", role="role"),
            lambda: guarded.as_root("auth/user/grant", user="quire", role="role"),
        ),
    ):
        withdraw()
        with pytest.raises(MetadataUnavailableError):
            await store.get("/ledgers/1")
        with pytest.raises(MetadataUnavailableError):
            await store.put("/ledgers/2", b"")
        restore()
        assert await eventually(lambda: store.count("/ledgers/")) <= 1
    await eventually(lambda: store.put("/ledgers/3", b""))
    async with asyncio.timeout(WAIT_S):
        async for event in watch:
            if event.key == "/ledgers/3":
                break
    await store.close()
    assert SECRET not in caplog.text


async def test_a_watch_alone_survives_an_etcd_that_forgot_its_token(guarded: Guarded) -> None:
    guarded.grant("/", "0")
    store = await opened(guarded.url, user())
    watch = await store.watch("/ledgers/")
    guarded.kill()
    await asyncio.to_thread(guarded.start)
    guarded.put(b"/ledgers/1", b"")
    assert await event_of(watch) == Event(EventKind.CREATED, "/ledgers/1")
    await store.close()


# values of other clients


@pytest.mark.parametrize(
    "value", [b"", b"\xff" * 100, b"BookieMetadataFormatVersion\t3\n" + b"\xff" * 50, bytes(1 << 19)]
)
async def test_values_of_other_clients_are_named_and_passed_over(tmp_path: Path, value: bytes) -> None:
    async with etcd(tmp_path / "etcd", None) as server:
        store = await opened(server.url, QUICK)
        path = layout.ledger_path(LedgerId(7))

        def put(key: bytes) -> None:
            server.call("kv/put", {"key": b64encode(key).decode(), "value": b64encode(value).decode()})

        for key in (path.encode(), b"/ledgers/available/\xff\xfe", b"/ledgers/available/a:1\x1b[2J", b"/\xff"):
            put(key)
        with pytest.raises(MetadataFormatError):
            await LedgerNodes(store).read(LedgerId(7))
        registry = await BookieRegistry.open(store)
        names = await store.children(layout.AVAILABLE)
        assert len(names) == 2
        put(b"/ledgers/available/\xfd")
        await store.put("/ledgers/available/last", value)
        assert await eventually(lambda: store.count("/ledgers/available/")) == 4
        assert all("\x1b" not in repr(bookie) for bookie in registry.writable)
        await registry.close()
        await store.close()
