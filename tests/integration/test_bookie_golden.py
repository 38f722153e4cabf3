"""Conversations of the stock client with the stock bookie, played against ours: the answers are the same bytes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.bookie_world import BookieWorld, RawPeer

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bookkeeper-wire"
CONVERSATIONS = sorted(
    path
    for pattern in (
        "v?-basic-*.txt",
        "v?-recovery*.txt",
        "v?-errors.txt",
        "v?-auth-disabled.txt",
        "v2-batch-read.txt",
        "v2-pipelined.txt",
        "v3-deferred-sync-force.txt",
        "v3-explicit-lac-*.txt",
    )
    for path in GOLDEN.glob(pattern)
)
"""Where our answers are meant to be the stock bookie's, all of them."""

# Probes answered otherwise on purpose. Frames as recorded; None: the answer is not compared.
DEVIATIONS: dict[str, str | None] = {
    # An add with a negative entry id: ids are unsigned in our index, so it is refused, and not found.
    "00000018020100000000000038e62046fb1a0007fffffffffffffffb": "00000018020100000000006438e62046fb1a0007fffffffffffffffb",
    "0000003d020200000000000038e62046fb1a0007fffffffffffffffb38e62046fb1a0007fffffffffffffffbffffffffffffffff"
    "000000000000000568656c6c6f": "00000018020200000000000138e62046fb1a0007fffffffffffffffb",
}


@pytest.fixture
async def world() -> AsyncIterator[BookieWorld]:
    """A bookie that has seen nothing yet."""
    world = BookieWorld()
    await world.start()
    yield world
    await world.stop()


class Conversation:
    """Plays a capture; a burst of recorded answers may come in any order."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._peers: dict[str, RawPeer] = {}
        self._expected: dict[str, list[str]] = {}
        self._current = "1"

    async def play(self, path: Path) -> None:
        """Every line, in order."""
        for line in path.read_text().splitlines():
            if line.startswith("# connection "):
                await self._turn(line.removeprefix("# connection "))
            elif line.startswith("> "):
                await self._settle(self._current)
                (await self._peer()).send(bytes.fromhex(line[2:]))
            elif line.startswith("< "):
                self._expected.setdefault(self._current, []).append(line[2:])
        for name in list(self._peers):
            await self._settle(name)
            await self._peers.pop(name).close()

    async def _peer(self) -> RawPeer:
        if self._current not in self._peers:
            self._peers[self._current] = await RawPeer.connect(self._port)
        return self._peers[self._current]

    async def _turn(self, text: str) -> None:
        name, _, event = text.partition(": ")
        if not event:
            await self._settle(self._current)
            self._current = name
        elif name in self._peers:
            await self._settle(name)
            peer = self._peers.pop(name)
            if event == "server closed":
                assert await peer.closed_by_bookie()
            await peer.close()

    async def _settle(self, name: str) -> None:
        expected = self._expected.pop(name, [])
        if expected:
            got = [frame.hex() for frame in await self._peers[name].receive_all(len(expected))]
            assert sorted(got) == sorted(DEVIATIONS.get(frame) or frame for frame in expected)


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
async def test_answers_are_those_of_the_stock_bookie(world: BookieWorld, path: Path) -> None:
    assert world.running is not None
    await Conversation(world.running.port).play(path)


async def test_v2_requests_that_no_stock_client_sends_are_answered_or_closed_as_by_the_stock_bookie(
    world: BookieWorld,
) -> None:
    assert world.running is not None
    await Conversation(world.running.port).play(GOLDEN / "v2-probes.txt")
