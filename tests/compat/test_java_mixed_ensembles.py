"""Tests of ensembles of stock Java bookies and ours on one etcd, with stock Java clients and our own."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.model import BookieId, DigestType, EntryId, LedgerId
from quire_bookie.wire import client_v3
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from tests.compat.conftest import TIMEOUTS
from tests.compat.test_java_ledgers import append, create, entries, read
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_bookie import JavaBookie
from tests.support.java_driver import JavaDriver, class_path, payload
from tests.support.polling import until

pytestmark = pytest.mark.compat

SIZE = 600
REGISTERED_TIMEOUT_S = 90
WHOLE_TIMEOUT_S = 60
WOKEN_TIMEOUT_S = 90
POLL_S = 300.0


@dataclass
class Mixed:
    """Two bookies of each kind, so that every ensemble of three has both."""

    cluster: EtcdCluster
    java_bookies: list[JavaBookie]

    @property
    def ids(self) -> list[str]:
        """The ids of all bookies."""
        return [bookie.bookie_id for bookie in self.java_bookies] + [
            bookie.bookie_id for bookie in self.cluster.bookies
        ]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, java: JavaDriver) -> Iterator[Mixed]:
    class_path()
    cluster = EtcdCluster(tmp_path_factory.mktemp("mixed"))
    both = [JavaBookie(cluster.folder / f"java{number}", cluster) for number in range(2)]
    try:
        cluster.add_bookies(2)
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(JavaBookie.start, both))
        for name, v2 in (("mixed v2", "true"), ("mixed v3", "false")):
            settings = {"useV2WireProtocol": v2, **TIMEOUTS}
            java.call("open_client", client=name, uri=cluster.java_uri, settings=settings)
        mixed = Mixed(cluster, both)
        wait_registered(java, mixed.ids)
        yield mixed
        for name in ("mixed v2", "mixed v3"):
            java.call("close_client", client=name)
    finally:
        for bookie in both:
            bookie.kill()
        cluster.close()


@pytest.fixture(params=["mixed v2", "mixed v3"])
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def wait_registered(java: JavaDriver, wanted: list[str]) -> None:
    """Wait until the Java clients know exactly these bookies as writable."""

    def known() -> list[list[str]]:
        return [sorted(java.call("bookies", client=name)["writable"]) for name in ("mixed v2", "mixed v3")]

    until(lambda: known() == [sorted(wanted)] * 2, known, timeout_s=REGISTERED_TIMEOUT_S)


def wait_whole(java: JavaDriver, client: str, ledger: dict[str, Any], digest: str) -> None:
    """Wait until the slowest replica is complete. A fence would refuse adds still in flight, which is not a loss."""

    def bad() -> Any:
        return java.call("check_ledger", client=client, ledger=ledger["ledger"], digest=digest)

    until(lambda: not bad(), bad, timeout_s=WHOLE_TIMEOUT_S)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (4, 2, 2)], ids=lambda q: "E{}Qw{}Qa{}".format(*q))
@pytest.mark.parametrize("digest", ["CRC32C", "MAC"])
def test_ledger_is_stored_on_both_kinds_of_bookies(
    java: JavaDriver, mixed: Mixed, client: str, digest: str, quorums: tuple[int, int, int]
) -> None:
    ledger = create(java, client, quorums, digest=digest)
    append(java, ledger, 200, SIZE)
    wait_whole(java, client, ledger, digest)
    metadata = java.call("metadata", client=client, ledger=ledger["ledger"])
    stock = {bookie.bookie_id for bookie in mixed.java_bookies}
    kinds = {bookie in stock for bookie in metadata["segments"]["0"]}
    assert kinds == {True, False}
    recovered = java.call("open", client=client, ledger=ledger["ledger"], digest=digest, recovery=True)
    assert recovered["lac"] == 199
    assert read(java, recovered, 0, 199) == entries(ledger, [SIZE] * 200)
    assert java.call("check_ledger", client=client, ledger=ledger["ledger"], digest=digest) == []
    assert java.call("append", handle=ledger["handle"], count=1, size=SIZE)["error"] in ("LedgerFenced", "LedgerClosed")


def test_bookies_of_both_kinds_give_a_client_the_same_answers(java: JavaDriver, mixed: Mixed, client: str) -> None:
    """Send the same requests in the same order; only values that always differ (disk space) are excluded."""
    v2 = client == "mixed v2"
    said = []
    for bookie in (mixed.java_bookies[0].bookie_id, mixed.cluster.bookies[0].bookie_id):
        fixed = {"client": client, "bookie": bookie, "ledger": 20_000_000_000 + v2, "digest": "CRC32C", "v2": v2}
        said.append([java.call(f"bookie_{op}", **{**fixed, **arguments}) for op, arguments in script(v2)])
    for (op, arguments), theirs, ours in zip(script(v2), *said, strict=True):
        assert ours == theirs, f"{op} {arguments}"


def script(v2: bool) -> list[tuple[str, dict[str, Any]]]:
    """Return requests about one new ledger."""
    right = {"password": "secret"}
    steps: list[tuple[str, dict[str, Any]]] = [
        ("read", {"entry": 0}),
        ("read", {"entry": -1}),
        ("read_lac", {}),
        *(("add", {"entry": entry, "lac": entry - 1, "size": 50, **right}) for entry in (0, 1, 2, 3, 7)),
        ("add", {"entry": 4, "lac": 3, "size": 50, "password": "wrong"}),
        *(("read", {"entry": entry}) for entry in (0, 3, 4, 7, 8, -1)),
        ("add", {"entry": 1, "lac": 0, "size": 50, **right}),
        ("read_lac", {}),
        ("write_lac", {"lac": 3, "password": "wrong"}),
        ("write_lac", {"lac": 3, **right}),
        ("read_lac", {}),
        ("read", {"entry": 2}),
        ("read", {"entry": -1, "fence": True, "password": "wrong"}),
        ("read", {"entry": -1, "fence": True, **right}),
        ("read", {"entry": 5, "fence": True, "high_priority": True, **right}),
        ("add", {"entry": 8, "lac": 7, "size": 50, **right}),
        ("add", {"entry": 8, "lac": 7, "size": 50, "recovery": True, "high_priority": True, **right}),
        ("read", {"entry": -1}),
        ("write_lac", {"lac": 2, **right}),
        ("read_lac", {}),
        ("read", {"entry": 0}),
    ]
    if v2:
        batches = [(0, 3, 1 << 20), (0, 100, 1 << 20), (0, 100, 200), (5, 3, 1 << 20), (7, 0, 1 << 20)]
        return steps + [("batch_read", {"entry": e, "count": c, "max_bytes": b}) for e, c, b in batches]
    polls: list[tuple[int, int, int, bool]] = [
        (-1, 0, 1000, True),
        (-1, 3, 1000, True),
        (-1, 50, 100, True),
        (2, 0, 100, False),
        (2, 50, 100, False),
        (5, 50, 100, False),
        (3, 0, 100, True),
    ]
    return [
        *steps,
        ("force", {}),
        ("add", {"entry": 9, "lac": 8, "size": 50, "recovery": True, "deferred_sync": True, **right}),
        *(
            ("long_poll", {"entry": entry, "previous_lac": lac, "timeout_ms": ms, "piggyback": piggyback})
            for entry, lac, ms, piggyback in polls
        ),
    ]


def test_writer_replaces_dead_bookies_by_the_other_kind(java: JavaDriver, mixed: Mixed, client: str) -> None:
    for dead in (mixed.java_bookies[1], mixed.cluster.bookies[1]):
        ledger = create(java, client, (3, 2, 2))
        append(java, ledger, 20, SIZE)
        writing = java.send("append", handle=ledger["handle"], count=2000, size=SIZE)
        dead.kill()
        assert writing.result(90)["error"] == "OK"
        assert read(java, ledger, 0, 2019) == entries(ledger, [SIZE] * 2020)
        dead.start()
        wait_registered(java, mixed.ids)
        java.call("close", handle=ledger["handle"])


async def test_our_client_writes_and_recovers_on_both_kinds_of_bookies(java: JavaDriver, mixed: Mixed) -> None:
    metadata = await open_metadata_store(mixed.cluster.etcd.url)
    ours = await LedgerClient.open(metadata, clock=SystemClock(), chance=SystemChance())
    for digest in DigestType:
        writer = await ours.create_ledger(ensemble_size=4, write_quorum=3, ack_quorum=2, digest_type=digest)
        ledger = writer.ledger_id
        for entry in range(30):
            await writer.append(payload(ledger, entry, SIZE))
        reader = await ours.open_ledger(LedgerId(ledger), recover=True)
        found = await reader.read(EntryId(0), EntryId(29))
        assert [bytes(entry.payload) for entry in found] == [payload(ledger, entry, SIZE) for entry in range(30)]
    await ours.close()
    await metadata.close()


@pytest.mark.parametrize("digest", list(DigestType), ids=lambda digest: digest.name)
async def test_our_reader_follows_java_bookies_by_long_polls_and_explicit_lacs(
    java: JavaDriver, mixed: Mixed, digest: DigestType
) -> None:
    """Poll one bookie for each step, with a timeout far longer than the test, so that only an event ends the poll."""
    ids = [BookieId(bookie.bookie_id) for bookie in mixed.java_bookies]
    metadata = await open_metadata_store(mixed.cluster.etcd.url)
    ours = await LedgerClient.open(metadata, clock=SystemClock(), chance=SystemChance())
    writer = await ours.create_ledger(
        ensemble_size=2, write_quorum=2, ack_quorum=2, digest_type=digest, password=b"secret", bookies=ids
    )
    ledger = writer.ledger_id
    await writer.append(payload(ledger, 0, SIZE))
    reader = await ours.open_ledger(ledger, password=b"secret", recover=False)
    assert reader.last_add_confirmed == -1

    async def woken(beyond: int) -> tuple[int, bool]:
        polling = asyncio.ensure_future(reader._polls.wait(reader.metadata, EntryId(beyond), POLL_S))
        await asyncio.sleep(0.3)
        pending = not polling.done()
        await (writer.append(payload(ledger, 1, SIZE)) if beyond < 0 else writer.tell_lac())
        return await asyncio.wait_for(polling, WOKEN_TIMEOUT_S), pending

    assert await woken(-1) == (0, True), "confirmed by the header of the next entry"
    assert await woken(0) == (1, True), "confirmed by the explicit LAC, not by an entry"
    assert await reader.read_explicit_lac() == 1
    found = await reader.read(EntryId(0), EntryId(1))
    assert [bytes(entry.payload) for entry in found] == [payload(ledger, entry, SIZE) for entry in range(2)]
    await writer.close()
    await ours.close()
    await metadata.close()


async def token_at(bookie: str, ledger: int, token: bytes) -> bytes | None:
    """Return the token of a ledger at one bookie; None if it knows none."""
    host, _, port = bookie.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(client_v3.ledger_token(1, LedgerId(ledger), token, None))
        size = int.from_bytes(await reader.readexactly(4), "big")
        response = pb.Response.FromString(await reader.readexactly(size))
    finally:
        writer.close()
    assert response.status == pb.EOK
    info = response.getBookieInfoResponse
    return info.quireToken if info.HasField("quireToken") else None


async def test_our_bookies_keep_the_token_of_a_ledger_beside_java_bookies_that_ignore_it(
    java: JavaDriver, mixed: Mixed
) -> None:
    """As a cluster of mixed versions: a bookie without tokens takes the same adds, and is read and recovered."""
    old = mixed.java_bookies[0].bookie_id
    ids = [BookieId(name) for name in (old, *(bookie.bookie_id for bookie in mixed.cluster.bookies))]
    metadata = await open_metadata_store(mixed.cluster.etcd.url)
    ours = await LedgerClient.open(metadata, clock=SystemClock(), chance=SystemChance())
    writer = await ours.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3, bookies=ids)
    ledger, token = writer.ledger_id, writer.metadata.token
    for entry in range(10):
        await writer.append(payload(ledger, entry, SIZE))
    assert token
    assert {name: await token_at(name, ledger, token) for name in ids} == {
        name: None if name == old else token for name in ids
    }
    reader = await ours.open_ledger(ledger, recover=True)
    assert reader.metadata.token == token
    found = await reader.read(EntryId(0), EntryId(9))
    assert [bytes(entry.payload) for entry in found] == [payload(ledger, entry, SIZE) for entry in range(10)]
    handle = java.call("open", client="mixed v2", ledger=ledger, digest="CRC32C", recovery=True)
    assert handle["lac"] == 9
    await ours.close()
    await metadata.close()
