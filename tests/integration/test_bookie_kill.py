"""A real bookie process, killed while a client writes: what it acknowledged is there, after every restart."""

import asyncio
import hashlib
import random
from pathlib import Path

import pytest

from quire_bookie.model import NO_ENTRY, DigestType, EntryId, LedgerId
from quire_bookie.wire import client_codec
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddResponse, ReadResponse, Status
from tests.support.bookie_process import bookie_process
from tests.support.bookie_world import RawPeer

pytestmark = pytest.mark.slow

LEDGERS = (LedgerId(1), LedgerId(2))
KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32, b"")
KILLS = 3
ADDS_BEFORE_A_KILL = 400
BUSY_KILLS = 10
BUSY_ADDS = 60
LARGE = 700
"""A payload of a busy bookie is so many times as large: several entry logs fill up between two kills."""


def payload(ledger: int, entry: int) -> bytes:
    """Known bytes of varying length; ledgers from 100 on have large entries."""
    times = LARGE if ledger >= 100 else 1
    return hashlib.sha256(b"%d/%d" % (ledger, entry)).digest() * (times + entry % 40)


def add(ledger: LedgerId, entry: int) -> bytes:
    """One add."""
    body = payload(ledger, entry)
    head = DIGEST.encode_entry(ledger, EntryId(entry), EntryId(entry - 1), 0, (body,))
    return b"".join(client_codec.v2_adds(KEY, [(head, body)]))


async def write_until(peer: RawPeer, first: dict[LedgerId, int], enough: int) -> dict[LedgerId, int]:
    """Keep adds in flight until `enough` are acknowledged; per ledger the number confirmed from the start on."""
    codec = ClientCodec(2)
    confirmed = dict(first)
    for ledger in first:
        peer.send(*(add(ledger, entry) for entry in range(first[ledger], first[ledger] + 2 * enough)))
    seen = 0
    while seen < enough:
        for response in codec.feed(await peer.receive()):
            assert isinstance(response, AddResponse)
            assert response.status is Status.OK
            assert response.first == confirmed[response.ledger]
            confirmed[response.ledger] += response.count
            seen += response.count
    return confirmed


async def check(port: int, confirmed: dict[LedgerId, int]) -> None:
    """Every acknowledged entry is there, byte for byte."""
    peer = await RawPeer.connect(port)
    codec = ClientCodec(2)
    for ledger, count in confirmed.items():
        if not count:
            continue
        peer.send(*(client_codec.v2_read(ledger, EntryId(entry)) for entry in range(count)))
        seen: set[EntryId] = set()
        while len(seen) < count:
            for response in codec.feed(await peer.receive()):
                assert isinstance(response, ReadResponse)
                assert response.data is not None, (ledger, response.entry, response.status)
                decoded = DIGEST.decode_entry(response.data, ledger, response.entry)
                assert bytes(decoded.payload) == payload(ledger, response.entry)
                seen.add(response.entry)
        (last,) = codec.feed(await peer.ask(client_codec.v2_read(ledger, NO_ENTRY)))
        assert isinstance(last, ReadResponse)
        assert last.data is not None
        assert DIGEST.decode_entry(last.data, ledger, None).entry >= count - 1
    await peer.close()


async def test_kills_in_a_row_while_a_client_writes_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    confirmed = dict.fromkeys(LEDGERS, 0)
    for _ in range(KILLS):
        async with bookie_process(tmp_path) as bookie:
            await check(bookie.port, confirmed)
            peer = await RawPeer.connect(bookie.port)
            confirmed = await write_until(peer, confirmed, ADDS_BEFORE_A_KILL)
            bookie.kill()
            await peer.close()
    async with bookie_process(tmp_path) as bookie:
        await check(bookie.port, confirmed)
        assert await asyncio.wait_for(bookie.stop(), 30) == 0
    async with bookie_process(tmp_path) as bookie:
        await check(bookie.port, confirmed)
    assert sum(confirmed.values()) >= KILLS * ADDS_BEFORE_A_KILL


async def is_gone(port: int, ledger: LedgerId) -> bool:
    """Whether the bookie gave a deleted ledger back."""
    peer = await RawPeer.connect(port)
    (answer,) = ClientCodec(2).feed(await peer.ask(client_codec.v2_read(ledger, EntryId(0))))
    await peer.close()
    assert isinstance(answer, ReadResponse)
    return answer.status is Status.NO_LEDGER


async def test_kills_amid_deletions_and_compaction_lose_nothing_of_the_ledgers_that_live(tmp_path: Path) -> None:
    chance = random.Random(4)
    confirmed: dict[LedgerId, int] = {}
    deleted: list[LedgerId] = []
    for kill in range(BUSY_KILLS):
        async with bookie_process(tmp_path, busy=True) as bookie:
            await check(bookie.port, confirmed)
            fresh = dict.fromkeys((LedgerId(100 + 2 * kill), LedgerId(101 + 2 * kill)), 0)
            for ledger in fresh:
                await bookie.tell(f"create {ledger}")
            peer = await RawPeer.connect(bookie.port)
            confirmed |= await write_until(peer, fresh, BUSY_ADDS)
            if kill > 1:  # one of two that lie in the same logs: the other has to be moved
                deleted.append(LedgerId(100 + 2 * (kill - 2)))
                del confirmed[deleted[-1]]
                await bookie.tell(f"delete {deleted[-1]}")
            confirmed |= await write_until(peer, {ledger: confirmed[ledger] for ledger in fresh}, chance.randrange(40))
            bookie.kill()
            await peer.close()
    async with bookie_process(tmp_path, busy=True) as bookie:
        async with asyncio.timeout(60):
            for ledger in deleted:
                while not await is_gone(bookie.port, ledger):  # noqa: ASYNC110 - another process does it
                    await asyncio.sleep(0.05)
            while _log_numbers(tmp_path)[0] < 4:  # noqa: ASYNC110 - another process does it
                await asyncio.sleep(0.05)  # what lived in the first logs is moved, and they are gone
        await check(bookie.port, confirmed)
        assert await asyncio.wait_for(bookie.stop(), 30) == 0
    async with bookie_process(tmp_path, busy=True) as bookie:
        await check(bookie.port, confirmed)
    assert len(deleted) == BUSY_KILLS - 2


def _log_numbers(folder: Path) -> list[int]:
    """Of the entry logs, ascending."""
    return sorted(int(path.stem, 16) for path in folder.rglob("*.qlog"))
