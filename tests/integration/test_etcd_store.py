"""What only the etcd store must survive: restarts, compaction, outages, failover, lost answers, TLS and users."""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme

from quire_bookie.errors import ConfigError, MetadataError, MetadataUnavailableError, MetadataUnknownError
from quire_bookie.metadata.cookies import Cookie, Cookies
from quire_bookie.metadata.etcd.store import EtcdMetadataStore
from quire_bookie.metadata.initialise import initialise
from quire_bookie.metadata.ledger_ids import LedgerIds
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.service_info import BookieServiceInfo, bookie_endpoint, encode_service_info
from quire_bookie.metadata.store import Event, EventKind, SessionState, Watch
from quire_bookie.metadata.url import parse_metadata_url
from quire_bookie.model import BookieId
from quire_bookie.server.start.registration import BookieRegistration
from quire_bookie.settings.metadata import MetadataSettings
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.golden_etcd import dump, history
from tests.support.ports import free_port
from tests.support.relay import Relay, Way

SETTINGS = MetadataSettings(session_timeout_s=2, operation_timeout_s=15, connect_timeout_s=5)
WAIT_S = 30


@pytest.fixture
async def proxy(etcd_server: EtcdServer) -> AsyncIterator[Relay]:
    """The network between the store and etcd."""
    opened = Relay(etcd_server.port)
    await opened.open()
    yield opened
    await opened.close()


async def open_store(url: str, settings: MetadataSettings = SETTINGS) -> EtcdMetadataStore:
    store = await open_metadata_store(url, settings)
    assert isinstance(store, EtcdMetadataStore)
    return store


async def next_event(watch: Watch) -> Event:
    async with asyncio.timeout(WAIT_S):
        return await anext(aiter(watch))


class SessionRecorder:
    """The states of a session, and a way to wait for one."""

    def __init__(self, store: EtcdMetadataStore) -> None:
        self.states: list[SessionState] = []
        self._event = asyncio.Event()
        store.on_session(self._told)

    def _told(self, state: SessionState) -> None:
        self.states.append(state)
        self._event.set()

    async def wait_for(self, state: SessionState) -> None:
        async with asyncio.timeout(WAIT_S):
            while state not in self.states:
                self._event.clear()
                await self._event.wait()


async def test_a_watch_goes_on_after_a_restart_and_misses_nothing(etcd_server: EtcdServer) -> None:
    store = await open_store(etcd_server.url)
    watch = await store.watch("/w/")
    await store.put("/w/0", b"")
    assert await next_event(watch) == Event(EventKind.CREATED, "/w/0")
    for n in range(1, 4):
        etcd_server.kill()
        await asyncio.to_thread(etcd_server.start)
        # By another client, perhaps before the watch is open again.
        etcd_server.call("kv/put", {"key": base64.b64encode(f"/w/{n}".encode()).decode()})
        assert await next_event(watch) == Event(EventKind.CREATED, f"/w/{n}")
    await store.close()


async def test_changes_made_while_the_client_was_cut_off_arrive_in_order(etcd_server: EtcdServer, proxy: Relay) -> None:
    store = await open_store(f"etcd://127.0.0.1:{proxy.port}")
    direct = await open_store(etcd_server.url)
    watch = await store.watch("/w/")
    await proxy.cut(refuse=True)
    for n in range(5):
        await direct.put(f"/w/{n}", b"")
    await direct.delete("/w/0")
    await proxy.open()
    events = [await next_event(watch) for _ in range(6)]
    assert events == [Event(EventKind.CREATED, f"/w/{n}") for n in range(5)] + [Event(EventKind.DELETED, "/w/0")]
    await store.close()
    await direct.close()


async def test_a_watch_asks_for_a_resync_when_its_revision_was_compacted(etcd_server: EtcdServer, proxy: Relay) -> None:
    store = await open_store(f"etcd://127.0.0.1:{proxy.port}")
    direct = await open_store(etcd_server.url)
    watch = await store.watch("/w/")
    await proxy.cut(refuse=True)
    for n in range(5):
        await direct.put(f"/w/{n}", b"")
    etcd_server.compact()
    await proxy.open()
    assert await next_event(watch) == Event(EventKind.RESYNC, "/w/")
    await direct.put("/w/after", b"")
    assert await next_event(watch) == Event(EventKind.CREATED, "/w/after")
    await store.close()
    await direct.close()


async def test_a_scan_whose_revision_was_compacted_ends_with_an_error_and_not_short(etcd_server: EtcdServer) -> None:
    store = await open_store(etcd_server.url)
    for n in range(6):
        await store.put(f"/s/{n}", b"")
    pages = store.scan("/s/", page_keys=2)
    assert len(await anext(pages)) == 2
    await store.put("/s/6", b"")
    etcd_server.compact()
    with pytest.raises(MetadataUnavailableError):
        await anext(pages)
    await store.close()


async def test_a_lease_survives_a_short_outage(etcd_server: EtcdServer, proxy: Relay) -> None:
    store = await open_store(f"etcd://127.0.0.1:{proxy.port}", MetadataSettings(session_timeout_s=10))
    sessions = SessionRecorder(store)
    await store.put("/e", b"", ephemeral=True)
    await proxy.cut(refuse=True)
    etcd_server.kill()
    await asyncio.to_thread(etcd_server.start)
    await proxy.open()
    node = await store.get("/e")
    assert node is not None and node.owned
    assert sessions.states == []
    await store.close()


async def test_a_lease_that_ran_out_is_replaced_and_the_bookie_registers_again(
    etcd_server: EtcdServer, proxy: Relay
) -> None:
    store = await open_store(f"etcd://127.0.0.1:{proxy.port}")
    direct = await open_store(etcd_server.url)
    watch = await direct.watch("/ledgers/available/")
    sessions = SessionRecorder(store)
    registration = BookieRegistration(store, BookieId("b1"), BookieServiceInfo((bookie_endpoint("127.0.0.1", 1),)))
    await direct.put("/ledgers/cookies/b1", b"")
    await registration.start()
    assert await next_event(watch) == Event(EventKind.CREATED, "/ledgers/available/b1")
    await proxy.cut(refuse=True)
    await sessions.wait_for(SessionState.LOST)
    assert await next_event(watch) == Event(EventKind.DELETED, "/ledgers/available/b1")
    assert not registration.registered
    await proxy.open()
    assert await next_event(watch) == Event(EventKind.CREATED, "/ledgers/available/b1")
    await sessions.wait_for(SessionState.RENEWED)
    assert sessions.states == [SessionState.LOST, SessionState.RENEWED]
    node = await store.get("/ledgers/available/b1")
    assert node is not None and node.owned
    await registration.stop()
    assert await direct.get("/ledgers/available/b1") is None
    await store.close()
    await direct.close()


async def test_a_restarted_bookie_takes_over_its_stale_registration_at_once(etcd_server: EtcdServer) -> None:
    """The first process dies without closing; its lease would hold the node for another minute."""
    long_lease = MetadataSettings(session_timeout_s=60)
    dead = await open_store(etcd_server.url, long_lease)
    info = BookieServiceInfo((bookie_endpoint("127.0.0.1", 1),))
    await dead.put("/ledgers/available/b1", encode_service_info(info), ephemeral=True)
    store = await open_store(etcd_server.url, long_lease)
    registration = BookieRegistration(store, BookieId("b1"), info)
    await store.put("/ledgers/cookies/b1", b"")
    async with asyncio.timeout(60):
        await registration.start()
    node = await store.get("/ledgers/available/b1")
    assert node is not None and node.owned
    assert registration.stats.takeovers == 1
    await store.close()
    await dead.close()


async def test_a_revoked_lease_is_replaced_by_the_write_that_finds_out(etcd_server: EtcdServer) -> None:
    store = await open_store(etcd_server.url, MetadataSettings(session_timeout_s=60))
    sessions = SessionRecorder(store)
    await store.put("/e/1", b"", ephemeral=True)
    leases = etcd_server.call("lease/leases", {})["leases"]
    assert isinstance(leases, list)
    etcd_server.call("lease/revoke", {"ID": leases[0]["ID"]})
    await store.put("/e/2", b"", ephemeral=True)
    node = await store.get("/e/2")
    assert node is not None and node.owned
    await sessions.wait_for(SessionState.RENEWED)
    assert await store.get("/e/1") is None
    await store.close()


async def test_a_write_whose_answer_is_lost_is_unknown_and_a_read_is_unavailable(
    etcd_server: EtcdServer, proxy: Relay
) -> None:
    store = await open_store(f"etcd://127.0.0.1:{proxy.port}", MetadataSettings(operation_timeout_s=1))
    direct = await open_store(etcd_server.url)
    proxy.hold({Way.BACK})
    with pytest.raises(MetadataUnknownError):
        await store.put("/a", b"happened")
    with pytest.raises(MetadataUnavailableError):
        await store.get("/a")
    node = await direct.get("/a")
    assert node is not None and node.value == b"happened"
    await store.close()
    await direct.close()


async def test_closing_the_store_ends_calls_under_way_with_an_error(etcd_server: EtcdServer, proxy: Relay) -> None:
    store = await open_store(f"etcd://127.0.0.1:{proxy.port}")
    await store.get("/a")
    proxy.hold({Way.BACK})
    write = asyncio.ensure_future(store.put("/a", b""))
    read = asyncio.ensure_future(store.get("/a"))
    direct = await open_store(etcd_server.url)
    watch = await direct.watch("/a")
    if await direct.get("/a") is None:
        await next_event(watch)  # the write is at etcd
    await store.close()
    outcomes = await asyncio.gather(write, read, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [MetadataUnknownError, MetadataUnavailableError]
    await direct.close()


async def test_a_member_that_stopped_answering_is_left_for_another(etcd_server: EtcdServer, proxy: Relay) -> None:
    url = f"etcd://127.0.0.1:{proxy.port},{etcd_server.endpoint}"
    store = await open_store(url, MetadataSettings(session_timeout_s=3, operation_timeout_s=20))
    await store.put("/e", b"", ephemeral=True)
    proxy.hold({Way.BACK})
    node = await store.get("/e")
    assert node is not None
    assert store.stats.failovers == 1
    await store.close()


async def test_a_write_that_never_left_is_unavailable_and_not_unknown(etcd_server: EtcdServer, proxy: Relay) -> None:
    store = await open_store(f"etcd://127.0.0.1:{proxy.port}", MetadataSettings(operation_timeout_s=1))
    await store.put("/a", b"")
    etcd_server.kill()
    await proxy.cut(refuse=True)
    outcomes = []
    for _ in range(3):
        with pytest.raises(MetadataError) as raised:
            await store.put("/a", b"")
        outcomes.append(type(raised.value))
    # The first may have been on a connection that was just breaking.
    assert outcomes[1:] == [MetadataUnavailableError, MetadataUnavailableError]
    await store.close()


async def test_a_client_uses_the_member_that_lives(etcd_server: EtcdServer, proxy: Relay) -> None:
    dead = free_port()
    store = await open_store(f"etcd://127.0.0.1:{dead},127.0.0.1:{proxy.port},{etcd_server.endpoint}")
    watch = await store.watch("/w/")
    await store.put("/w/1", b"")
    assert await next_event(watch) == Event(EventKind.CREATED, "/w/1")
    await proxy.cut(refuse=True)
    for _ in range(10):
        try:
            await store.put("/w/2", b"")
            break
        except MetadataUnknownError:
            continue  # it was on the connection that broke
    assert (await next_event(watch)).key == "/w/2"
    await store.close()


async def test_opening_fails_clearly_when_no_member_answers() -> None:
    url = f"etcd://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
    with pytest.raises(MetadataUnavailableError, match=r"127\.0\.0\.1"):
        await open_metadata_store(url, MetadataSettings(connect_timeout_s=0.5))


async def test_a_user_logs_in_and_again_when_the_token_is_gone(etcd_server: EtcdServer) -> None:
    etcd_server.call("auth/user/add", {"name": "root", "password": "secret"})
    etcd_server.call("auth/user/grant", {"user": "root", "role": "root"})
    etcd_server.call("auth/enable", {})
    user = MetadataSettings(username="root", password="secret", session_timeout_s=5)
    store = await open_store(etcd_server.url, user)
    watch = await store.watch("/a")
    await store.put("/a", b"", ephemeral=True)
    assert await next_event(watch) == Event(EventKind.CREATED, "/a")
    etcd_server.kill()
    await asyncio.to_thread(etcd_server.start)  # forgets all tokens
    assert (await store.get("/a")) is not None
    await store.put("/ab", b"")
    assert await next_event(watch) == Event(EventKind.CREATED, "/ab")
    await store.close()
    with pytest.raises(ConfigError, match="root"):
        await open_metadata_store(etcd_server.url, MetadataSettings(username="root", password="wrong"))
    with pytest.raises(ConfigError, match="user name is empty"):
        await open_metadata_store(etcd_server.url, MetadataSettings(connect_timeout_s=2))


class TlsFiles:
    """An authority, and a certificate of it for the server and for a client. PEM files."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        for name in ("server", "client"):
            issued = authority.issue_cert("127.0.0.1", common_name=name)
            issued.private_key_pem.write_to_path(str(folder / f"{name}-key.pem"))
            issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
        self.server = ("--cert-file", str(folder / "server.pem"), "--key-file", str(folder / "server-key.pem"))
        self.client_cert, self.client_key = str(folder / "client.pem"), str(folder / "client-key.pem")


@pytest.fixture
def tls_files(tmp_path: Path) -> TlsFiles:
    """Fresh certificates."""
    return TlsFiles(tmp_path)


@pytest.fixture
def tls_server(tmp_path: Path, tls_files: TlsFiles) -> Iterator[EtcdServer]:
    """An etcd that serves TLS and wants a certificate from its clients."""
    folder = tmp_path / "tls"
    folder.mkdir()
    client_auth = ("--client-cert-auth", "--trusted-ca-file", tls_files.ca)
    server = EtcdServer(require_etcd(), folder, extra=(*tls_files.server, *client_auth), scheme="https")
    server.start()
    yield server
    server.kill()


async def test_tls_needs_the_right_authority_and_the_client_certificate(
    tls_server: EtcdServer, tls_files: TlsFiles
) -> None:
    complete = MetadataSettings(
        ca_path=tls_files.ca, cert_path=tls_files.client_cert, key_path=tls_files.client_key, connect_timeout_s=10
    )
    store = await open_store(tls_server.url, complete)
    assert await store.put("/a", b"", ephemeral=True) == 0
    await store.close()
    for incomplete in (
        MetadataSettings(connect_timeout_s=1),
        MetadataSettings(ca_path=tls_files.ca, connect_timeout_s=1),
    ):
        with pytest.raises(MetadataUnavailableError):
            await open_metadata_store(tls_server.url, incomplete)


async def test_a_missing_certificate_file_is_a_config_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem"):
        await open_metadata_store("etcd:https://127.0.0.1:1", MetadataSettings(ca_path="/nonexistent/missing.pem"))


class GoldenChance:
    """Draws the instance id of the recorded cluster."""

    def __init__(self, instance_id: str) -> None:
        self._token = bytes.fromhex(instance_id.replace("-", ""))

    def token(self, size: int) -> bytes:
        assert size == len(self._token)
        return self._token

    def uniform(self, low: float, high: float) -> float:
        raise NotImplementedError

    def sample(self, population: object, count: int) -> list[object]:
        raise NotImplementedError


async def test_a_cluster_looks_to_etcd_exactly_as_the_stock_one(etcd_server: EtcdServer) -> None:
    """Keys, values, versions and leases after: set-up, three bookies, one ledger created and closed."""
    recorded = {
        change.key: change for change in history() if change.key.startswith("/ledgers/") and change.revision < 36
    }
    values = [change for change in history() if change.key == "/ledgers/00/0000/L0001"]
    instance_id = recorded["/ledgers/INSTANCEID"].value.decode()
    bookies = [BookieId(f"127.0.0.1:{port}") for port in (3185, 3186, 3187)]

    store = await open_store(etcd_server.url)
    assert await initialise(store, GoldenChance(instance_id)) == instance_id  # type: ignore[arg-type]
    for bookie in bookies:
        index = int(bookie[-1])
        folder = f"/var/bk/run-ms/bookie{index}"
        ledgers = (f"{folder}/ledgers",)
        await Cookies(store).create(Cookie(bookie, (f"{folder}/journal",), ledgers, instance_id, ledgers))
        endpoint = bookie_endpoint("127.0.0.1", 3180 + index)
        await BookieRegistration(store, bookie, BookieServiceInfo((endpoint,))).start()
    ledger = await LedgerIds(store).next_id()
    nodes = LedgerNodes(store)
    created = await nodes.create(ledger, decode_ledger_metadata(values[0].value))
    await nodes.update(ledger, decode_ledger_metadata(values[1].value), created.version)

    kvs = etcd_server.call("kv/range", {"key": "AA==", "range_end": "AA=="})["kvs"]
    assert isinstance(kvs, list)
    ours = {base64.b64decode(kv["key"]).decode(): kv for kv in kvs}
    # The stock shell made only the first of the three folders, the stock cluster set-up makes all.
    assert {"/ledgers/available", "/ledgers/available/readonly"} <= ours.keys()
    stock = dump("pulsar-store.txt")
    assert ours.keys() - {"/ledgers/available", "/ledgers/available/readonly"} == {key.key for key in stock}
    for key in stock:
        kv = ours[key.key]
        value = base64.b64decode(kv.get("value", ""))
        assert value == (key.value if key.value is not None else recorded[key.key].value), key.key
        assert int(kv["version"]) == key.key_version, key.key
        assert (int(kv.get("lease", 0)) != 0) == key.leased, key.key
    await store.close()


def test_the_url_forms_of_all_three_systems_name_the_same_cluster() -> None:
    ours = parse_metadata_url("etcd://h1:2379,h2:2379")
    assert parse_metadata_url("etcd:http://h1:2379,http://h2:2379") == ours
    assert parse_metadata_url("metadata-store:etcd:http://h1:2379;http://h2:2379") == ours
