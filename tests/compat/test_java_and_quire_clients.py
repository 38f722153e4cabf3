"""Tests of ledgers that the stock Java client writes and ours reads and recovers, and the reverse."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire_bookie.client import LedgerClient
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.errors import LedgerFencedError, UnauthorizedError
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.model import LEDGER_TOKEN, DigestType, EntryId, LedgerId
from tests.compat.test_java_ledgers import append, create, entries, read
from tests.support.etcd_cluster import EtcdCluster
from tests.support.java_driver import JavaDriver, payload

pytestmark = pytest.mark.compat

SIZE = 900
JAVA_NAMES = {DigestType.CRC32: "CRC32", DigestType.CRC32C: "CRC32C", DigestType.HMAC: "MAC", DigestType.DUMMY: "DUMMY"}
QUORUMS = [(1, 1, 1), (3, 3, 2), (3, 2, 2)]

digests = pytest.mark.parametrize("digest", list(DigestType), ids=lambda digest: JAVA_NAMES[digest])
quorums = pytest.mark.parametrize("quorums", QUORUMS, ids=lambda quorums: "E{}Qw{}Qa{}".format(*quorums))


@pytest.fixture
async def ours(cluster: EtcdCluster, java: JavaDriver) -> AsyncIterator[LedgerClient]:
    """Open our client on the cluster of the Java client."""
    metadata = await open_metadata_store(cluster.etcd.url)
    client = await LedgerClient.open(metadata, clock=SystemClock(), chance=SystemChance())
    yield client
    await client.close()
    await metadata.close()


async def payloads(reader: Any, last: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) <= last:
        found += [bytes(entry.payload) for entry in await reader.read(EntryId(len(found)), EntryId(last))]
    return found


def written(ledger: int, count: int) -> list[bytes]:
    return [payload(ledger, entry, SIZE) for entry in range(count)]


@quorums
@digests
async def test_our_client_reads_and_recovers_ledgers_of_java(
    java: JavaDriver, ours: LedgerClient, client: str, digest: DigestType, quorums: tuple[int, int, int]
) -> None:
    ledger = create(java, client, quorums, digest=JAVA_NAMES[digest], password="secret", custom={"by": "java"})
    ledger_id = LedgerId(ledger["ledger"])
    append(java, ledger, 80, SIZE)
    tail = await ours.open_ledger(ledger_id, password=b"secret", recover=False)
    assert await payloads(tail, tail.last_add_confirmed) == written(ledger_id, tail.last_add_confirmed + 1)
    with pytest.raises(UnauthorizedError):
        await ours.open_ledger(ledger_id, password=b"wrong", recover=True)
    recovered = await ours.open_ledger(ledger_id, password=b"secret", recover=True)
    assert (recovered.last_add_confirmed, recovered.length) == (79, 80 * SIZE)
    assert await payloads(recovered, 79) == written(ledger_id, 80)
    failed = java.call("append", handle=ledger["handle"], count=1, size=SIZE)
    assert failed["error"] in ("LedgerFenced", "LedgerClosed")
    metadata = java.call("metadata", client=client, ledger=ledger_id)
    assert (metadata["state"], metadata["last"], metadata["length"]) == ("CLOSED", 79, 80 * SIZE)
    assert metadata["custom"] == {"by": "java"}


@quorums
@digests
async def test_java_reads_and_recovers_ledgers_of_our_client(
    java: JavaDriver, ours: LedgerClient, client: str, digest: DigestType, quorums: tuple[int, int, int]
) -> None:
    ensemble, write_quorum, ack_quorum = quorums
    writer = await ours.create_ledger(
        ensemble_size=ensemble,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        digest_type=digest,
        password=b"secret",
        custom={"by": b"quire"},
    )
    ledger = writer.ledger_id
    for entry in range(80):
        await writer.append(payload(ledger, entry, SIZE))
    open_ = {"client": client, "ledger": ledger, "digest": JAVA_NAMES[digest], "password": "secret"}
    tail = await on(java, "open", **open_, recovery=False)
    assert tail["lac"] >= 78
    recovered = await on(java, "open", **open_, recovery=True)
    assert (recovered["lac"], recovered["length"]) == (79, 80 * SIZE)
    assert read(java, recovered, 0, 79) == entries({"ledger": ledger}, [SIZE] * 80)
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")
    metadata = await on(java, "metadata", client=client, ledger=ledger)
    assert (metadata["state"], metadata["last"], metadata["custom"]) == (
        "CLOSED",
        79,
        {"by": "quire", LEDGER_TOKEN: writer.metadata.token.decode()},
    )
    assert await on(java, "check_ledger", **open_) == []


async def test_java_reads_ledgers_that_our_client_closed(java: JavaDriver, ours: LedgerClient, client: str) -> None:
    writer = await ours.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    ledger = writer.ledger_id
    writer.submit([payload(ledger, entry, SIZE) for entry in range(500)])
    await writer.close()
    opened = await on(java, "open", client=client, ledger=ledger, digest="CRC32C", recovery=False)
    assert (opened["lac"], opened["length"]) == (499, 500 * SIZE)
    assert read(java, opened, 0, 499) == entries(opened, [SIZE] * 500)
    if client == "v2":
        found = await on(java, "batch_read", handle=opened["handle"], first=0, count=500, bytes=5 << 20)
        assert found == entries(opened, [SIZE] * 500)


async def test_our_client_recovers_a_ledger_under_a_java_writer_at_full_speed(
    java: JavaDriver, ours: LedgerClient, client: str
) -> None:
    ledger = create(java, client, (3, 2, 2))
    writing = java.send("write_until_error", handle=ledger["handle"], size=SIZE, window=200)
    await asyncio.to_thread(java.wait_acked, ledger["ledger"], 500)
    recovered = await ours.open_ledger(LedgerId(ledger["ledger"]), recover=True)
    end = await asyncio.wrap_future(writing)
    assert end["error"] == "LedgerFenced"
    assert recovered.last_add_confirmed >= end["last"] >= 500
    count = recovered.last_add_confirmed + 1
    assert await payloads(recovered, count - 1) == written(ledger["ledger"], count)


async def on(java: JavaDriver, op: str, **arguments: Any) -> Any:
    """Run a command of the Java driver without blocking the event loop of our client."""
    return await asyncio.wrap_future(java.send(op, **arguments))
