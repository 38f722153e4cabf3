"""A client that reaches a standalone's bookie and knows its ledgers, but not their password."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.wire import client_codec
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddResponse, ReadResponse, Status
from tests.support.bookie_world import RawPeer
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
    rows = json.loads(quire(server, "ledger", "list", "--format", "json"))
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
    quire(server, "produce", TOPIC, "-", stdin="one\ntwo\n")
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
