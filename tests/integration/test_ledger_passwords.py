"""A client that reaches a standalone's bookie and knows its ledgers, but not their password."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.wire import client_codec
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddResponse, ReadResponse, Status
from quire_jobs.source.cluster import open_cluster
from tests.support.bookie_world import RawPeer
from tests.support.etcd_server import EtcdServer
from tests.support.standalone import QUIRE, StandaloneProcess, environment

TOPIC = "guarded"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    found = StandaloneProcess(tmp_path)
    found.start()
    yield found
    found.close()


def quire(server: StandaloneProcess, *arguments: str, stdin: str = "") -> str:
    known = environment() | {"QUIRE_BROKER": server.url, "QUIRE_HTTP": server.http}
    done = subprocess.run([QUIRE, *arguments], input=stdin, capture_output=True, text=True, timeout=60, env=known)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ledger_of_topic(server: StandaloneProcess) -> LedgerId:
    rows = json.loads(quire(server, "ledger", "list", "-o", "json"))
    owned = [row["ledgerId"] for row in rows if row["custom"].get("pulsar/managed-ledger", "").endswith(TOPIC)]
    return LedgerId(max(owned))


async def answer(server: StandaloneProcess, request: bytes) -> Any:
    peer = await RawPeer.connect(server.bookie_port)
    try:
        (response,) = ClientCodec(2).feed(await peer.ask(request))
        return response
    finally:
        await peer.close()


def fence(server: StandaloneProcess, ledger: LedgerId, password: bytes) -> Status:
    request = client_codec.v2_read(ledger, EntryId(0), fence_with=master_key(password))
    response = asyncio.run(answer(server, request))
    assert isinstance(response, ReadResponse)
    return response.status


def forge(server: StandaloneProcess, ledger: LedgerId, entry_id: int, password: bytes, *, recovery: bool) -> Status:
    digest, payload = Digest(DigestType.CRC32C, password), b"forged"
    head = digest.encode_entry(ledger, EntryId(entry_id), EntryId(entry_id - 1), len(payload), (payload,))
    request = b"".join(client_codec.v2_adds(master_key(password), [(head, payload)], recovery=recovery))
    response = asyncio.run(answer(server, request))
    assert isinstance(response, AddResponse)
    return response.status


def test_without_the_password_no_ledger_is_fenced_or_written(server: StandaloneProcess) -> None:
    quire(server, "produce", TOPIC, "-", "--batch-max", "1", stdin="one\ntwo\n")
    ledger = ledger_of_topic(server)
    for recovery in (False, True):
        assert forge(server, ledger, 2, b"", recovery=recovery) is Status.UNAUTHORIZED
    assert fence(server, ledger, b"") is Status.UNAUTHORIZED
    quire(server, "produce", TOPIC, "-", stdin="three\n")
    assert quire(server, "consume", TOPIC) == "one\ntwo\nthree\n"
    kept = (server.data / "ledger-password").read_bytes().strip()
    assert fence(server, ledger, kept) is Status.OK  # the request itself is one that fences


def test_ledgers_with_another_password_are_served_and_new_ones_have_the_present_one(server: StandaloneProcess) -> None:
    quire(server, "produce", TOPIC, "-", stdin="one\n")
    former = (server.data / "ledger-password").read_bytes()
    older = ledger_of_topic(server)
    server.kill()
    (server.data / "ledger-password").unlink()  # its next start draws another
    server.start()
    assert quire(server, "consume", TOPIC) == "one\n"
    assert (server.data / "ledger-password").read_bytes() != former
    assert quire(server, "ledger", "read", str(older)).splitlines()[0].endswith("one")
    quire(server, "produce", TOPIC, "-", stdin="two\n")
    assert fence(server, ledger_of_topic(server), former.strip()) is Status.UNAUTHORIZED
    assert quire(server, "consume", TOPIC) == "one\ntwo\n"


@dataclass(frozen=True)
class Where:
    """Options of a job."""

    metadata: str
    config: str


def test_a_job_reads_ledgers_whose_password_it_does_not_have(tmp_path: Path, etcd_server: EtcdServer) -> None:
    server = StandaloneProcess(tmp_path, metadata=f"etcd://{etcd_server.endpoint}")

    async def first_entry(ledger: LedgerId, config: str) -> bytes:
        async with open_cluster(Where(f"etcd://{etcd_server.endpoint}", config), {}) as cluster:
            reader = await cluster.open_ledger(ledger)
            try:
                (entry,) = await reader.read(EntryId(0), EntryId(0))
                return bytes(entry.payload)
            finally:
                await reader.close()

    try:
        server.start()
        quire(server, "produce", TOPIC, "-", stdin="one\n")
        ledger = ledger_of_topic(server)
        server.stop()  # it closes the ledger, so that all of it can be read
        server.start()
        (tmp_path / "another").write_text("another\n")
        (tmp_path / "job.toml").write_text(f'managedLedgerPassword = "file://{tmp_path}/another"\n')
        for config in ("", str(tmp_path / "job.toml")):
            assert b"one" in asyncio.run(first_entry(ledger, config))
    finally:
        server.close()
