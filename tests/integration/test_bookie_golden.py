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
        "v?-errors*.txt",
        "v?-auth-disabled.txt",
        "v3-bookie-info.txt",
        "v2-batch-read.txt",
        "v2-client-v3-only-ops.txt",
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
_LEDGER_655 = "85c0ece9d9b6c1371a143782dace9d90028f"
_TWICE_V2 = "3782dace9d9002590000000000000001"
_TWICE_IDS = "3782dace9d90028b0000000000000001"
_TWICE_V3 = "0800108b85c0ece9d9b6c1371801"
_AT_13 = "000000000000000d0000000000000003"
_NEGATIVE = "38e62046fb1a0007fffffffffffffffb"
DEVIATIONS = {
    # An add with a negative entry id: ids are unsigned in our index, so it is refused, and the ledger is not created.
    f"000000180201000000000000{_NEGATIVE}": f"000000180201000000000064{_NEGATIVE}",
    f"0000003d0202000000000000{_NEGATIVE}{_NEGATIVE}ffffffffffffffff000000000000000568656c6c6f": (
        f"000000180202000000000001{_NEGATIVE}"
    ),
    # Two explicit LACs without an entry: the stock bookie says EIO and sends the LAC all the same; we say EOK.
    f"0000002d0a0608031007180410f503c2061f08f50310{_LEDGER_105}1a1038e62046fb1a00690000000000000009": (
        f"0000002b0a060803100718041000c2061e080010{_LEDGER_105}1a1038e62046fb1a00690000000000000009"
    ),
    f"000000310a0608031007182b10f503c2062308f503108f{_LEDGER_655}0000000000000003b28cdf05": (
        f"0000002f0a0608031007182b1000c206220800108f{_LEDGER_655}0000000000000003b28cdf05"
    ),
    # An id that is added again with other bytes is another ledger under the same id: it is refused (EUA), and the first
    # bytes stay, as in SortedLedgerStorage; DbLedgerStorage gives the last.
    f"0000001b0a060803100218211000aa060e{_TWICE_V3}": f"0000001c0a0608031002182110f603aa060f08f603{_TWICE_V3[4:]}",
    # Such an add fences the ledger, so that none behind it mixes the two.
    f"000000180201000000000000{_AT_13[:-2]}14": f"000000180201000000000068{_AT_13[:-2]}14",
    "000000140a07080310021885011000aa0606080010191814": "000000170a070803100218850110f803aa060708f80310191814",
    "000000140a07080310021883011000aa0606080010191803": "000000170a070803100218830110f603aa060708f60310191803",
    f"000000400202000000000000{_AT_13}{_AT_13}000000000000000200000000000003f6c7196791030a1118": (
        f"000000410202000000000000{_AT_13}{_AT_13}000000000000000200000000000003f79304a570030a11181f"
    ),
    f"000000480a060803100118221000a2063b{_TWICE_V3}2229{_TWICE_IDS}{'ff' * 8}0000000000000005064311a6030a11181f2800": (
        f"000000510a060803100118221000a20644{_TWICE_V3}2229{_TWICE_IDS}{'ff' * 8}0000000000000005064311a6030a11181f28"
        "ffffffffffffffffff01"
    ),
    "000000400a07080310011884011000a20632080010191803222800000000000000190000000000000003000000000000000200000000000003f6"
    "5d189519030a11182802": (
        "000000410a07080310011884011000a2063308001019180322290000000000000019000000000000000300000000000000020000000000"
        "0003f79bb1c735030a11181f2802"
    ),
}
"""Recorded answers that ours differ from on purpose, and ours."""
SECOND = {
    # V2 answers name no request, so that of the second add is known by its place.
    f"000000180201000000000000{_TWICE_V2}": f"000000180201000000000066{_TWICE_V2}",
    f"000000180201000000000000{_AT_13}": f"000000180201000000000066{_AT_13}",
}
"""The same for the second time that an answer is recorded in a conversation."""
_OF_THE_MOMENT = {
    "readResponse": ("lacUpdateTimestamp",),
    "getBookieInfoResponse": ("totalDiskCapacity", "freeDiskSpace"),
}
"""Fields of V3 answers that are there or not as recorded, with values of their own."""


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


def comparable(frame: str) -> str:
    """The same frame without the time of the day that a woken long poll is given, and without the size of a disk."""
    data = bytes.fromhex(frame)
    if data[4] != V3_FIRST_BYTE:
        return frame
    answer = pb.Response.FromString(data[4:])
    for part, names in _OF_THE_MOMENT.items():
        for name in names:
            body = getattr(answer, part)
            if body.HasField(name):
                setattr(body, name, 0)
    return answer.SerializeToString().hex()


class Conversation:
    """Plays a capture; a burst of recorded answers may come in any order."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._peers: dict[str, RawPeer] = {}
        self._expected: dict[str, list[str]] = {}
        self._current = "1"
        self._seen: set[str] = set()

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
            wanted = [self._ours(frame) for frame in expected]
            assert sorted(map(comparable, got)) == sorted(map(comparable, wanted))

    def _ours(self, frame: str) -> str:
        """What we answer where this was recorded."""
        second = frame in self._seen
        self._seen.add(frame)
        if second and frame in SECOND:
            return SECOND[frame]
        return DEVIATIONS.get(frame, frame)


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
