"""Conversations of the stock client with the stock bookie, played against ours: the answers are the same bytes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.server_v2 import V3_FIRST_BYTE
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
        "v3-force-unknown-ledger.txt",
        "v3-list-of-entries.txt",
        "v3-longpoll.txt",
    )
    for path in GOLDEN.glob(pattern)
)
"""Where our answers are meant to be the stock bookie's, all of them."""

_LEDGER_105 = "e980e8d8ef8888f338"
_NEGATIVE = "38e62046fb1a0007fffffffffffffffb"
DEVIATIONS = {
    # An add with a negative entry id: ids are unsigned in our index, so it is refused, and the ledger is not created.
    f"000000180201000000000000{_NEGATIVE}": f"000000180201000000000064{_NEGATIVE}",
    f"0000003d0202000000000000{_NEGATIVE}{_NEGATIVE}ffffffffffffffff000000000000000568656c6c6f": (
        f"000000180202000000000001{_NEGATIVE}"
    ),
    # An explicit LAC without an entry: the stock bookie says EIO and sends the LAC all the same; we say EOK.
    f"0000002d0a0608031007180410f503c2061f08f50310{_LEDGER_105}1a1038e62046fb1a00690000000000000009": (
        f"0000002b0a060803100718041000c2061e080010{_LEDGER_105}1a1038e62046fb1a00690000000000000009"
    ),
}
"""Recorded answers that ours differ from on purpose, and ours."""


@pytest.fixture
async def world() -> AsyncIterator[BookieWorld]:
    """A bookie that has seen nothing yet."""
    world = BookieWorld()
    await world.start()
    yield world
    await world.stop()


def capture_of(name: str) -> str:
    """The text of a capture."""
    return (GOLDEN / f"{name}.txt").read_text()


def timeless(frame: str) -> str:
    """The same frame without the time of the day that a woken long poll is given."""
    data = bytes.fromhex(frame)
    if data[4] != V3_FIRST_BYTE:
        return frame
    answer = pb.Response.FromString(data[4:])
    if not answer.readResponse.HasField("lacUpdateTimestamp"):
        return frame
    answer.readResponse.lacUpdateTimestamp = 0
    return answer.SerializeToString().hex()


class Conversation:
    """Plays a capture; a burst of recorded answers may come in any order."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._peers: dict[str, RawPeer] = {}
        self._expected: dict[str, list[str]] = {}
        self._current = "1"

    async def play(self, capture: str) -> None:
        """Every line, in order."""
        for line in capture.splitlines():
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
            wanted = [DEVIATIONS.get(frame, frame) for frame in expected]
            assert sorted(map(timeless, got)) == sorted(map(timeless, wanted))


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
async def test_answers_are_those_of_the_stock_bookie(world: BookieWorld, path: Path) -> None:
    assert world.running is not None
    await Conversation(world.running.port).play(capture_of(path.stem))


@pytest.mark.parametrize("name", ["v2-probes", "v3-probes"])
async def test_requests_that_no_stock_client_sends_are_answered_or_closed_as_by_the_stock_bookie(
    world: BookieWorld, name: str
) -> None:
    assert world.running is not None
    capture = capture_of(name)
    # The last request of connection 25 asks for a list of entries; the stock bookie's storage has none, we answer.
    text = capture.replace("> 000000150a060803100b1804e2060a08ea80e8d8ef8888f338\n", "")
    await Conversation(world.running.port).play(text)


@pytest.mark.parametrize("name", ["v2-read-only-bookie", "v3-read-only-bookie"])
async def test_a_read_only_bookie_takes_high_priority_recovery_adds_and_reads_only(
    world: BookieWorld, name: str
) -> None:
    assert world.running is not None
    await world.running.set_read_only(True)
    await Conversation(world.running.port).play(capture_of(name))
