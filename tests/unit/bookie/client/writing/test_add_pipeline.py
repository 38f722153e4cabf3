"""Tests the pipeline alone, with links that only record: lengths, releases, retries."""

import asyncio
from collections.abc import Callable

import pytest

from quire_bookie.client.links.bookie_link import AddSink, BatchAnswer, EntryAnswer, Purpose, V3Link
from quire_bookie.client.replica_health import ReplicaHealth
from quire_bookie.client.writing.add_frames import AddFrames
from quire_bookie.client.writing.add_pipeline import AddPipeline
from quire_bookie.errors import (
    BookieIoError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    QuorumError,
    TooManyRequestsError,
)
from quire_bookie.model import (
    BookieId,
    Buffer,
    DigestType,
    EntryId,
    LedgerId,
    LedgerMetadata,
    ReplicaState,
    Segment,
)
from quire_bookie.settings.client import ClientSettings
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddRequest
from quire_bookie.wire.server_codec import ServerCodec

_A, _B, _C = BookieId("a"), BookieId("b"), BookieId("c")


class _Link:
    def __init__(self, bookie: BookieId) -> None:
        self.bookie = bookie
        self.sent: list[list[int]] = []
        self.forgotten = 0

    def send_adds(self, ledger: LedgerId, frames: Buffer, sink: AddSink) -> None:
        runs = [request.run for request in ServerCodec().feed(bytes(frames)) if isinstance(request, AddRequest)]
        self.sent.append([run.first + i for run in runs for i in range(len(run.entries))])

    def forget_sink(self, ledger: LedgerId, sink: AddSink) -> None:
        self.forgotten += 1

    def read(
        self, ledger: LedgerId, entry: EntryId, answer: EntryAnswer, *, fence_key: bytes | None, high_priority: bool
    ) -> None:
        raise AssertionError("a pipeline does not read")

    def read_batch(
        self, ledger: LedgerId, first: EntryId, entries_max: int, bytes_max: int, answer: BatchAnswer
    ) -> None:
        raise AssertionError("a pipeline does not read")


class _World:
    """Implements the owner and the links of one pipeline."""

    def __init__(self, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
        self.confirmed: list[int] = []
        self.failures: list[LedgerError] = []
        self.dropped: list[BookieId] = []
        self.released = 0
        self.waits = False
        self.timers: list[Callable[[], None]] = []
        self.time_s = 100.0
        self.links = {name: _Link(name) for name in (_A, _B, _C)}
        self.suspects: frozenset[BookieId] = frozenset()
        metadata = LedgerMetadata(*quorums, (Segment(EntryId(0), (_A, _B, _C)),))
        self.pipeline = AddPipeline(
            LedgerId(1),
            metadata,
            EntryId(0),
            0,
            links=self,
            purpose=Purpose.ADD,
            settings=ClientSettings(add_timeout_s=5.0),
            owner=self,
        )
        self._frames = AddFrames(LedgerId(1), Digest(DigestType.CRC32C, b""), master_key(b""), 1_000_000)
        self._length = 0

    def push(self, *sizes: int) -> None:
        frames, self._length = self._frames.encode(
            EntryId(self.pipeline.pushed + 1), self.pipeline.confirmed, self._length, [b"x" * size for size in sizes]
        )
        self.pipeline.push(frames, len(sizes), self._length)

    def ack(self, bookie: BookieId, first: int, count: int = 1) -> None:
        self.pipeline.adds_stored(bookie, EntryId(first), count)
        self.pipeline.adds_answered()

    def refuse(self, bookie: BookieId, error: LedgerError, first: int, count: int = 1) -> None:
        self.pipeline.adds_refused(bookie, EntryId(first), count, error)
        self.pipeline.adds_answered()

    # ---- Links
    def link(self, bookie: BookieId, purpose: Purpose) -> _Link:
        assert purpose is Purpose.ADD
        return self.links[bookie]

    def v3_link(self, bookie: BookieId, purpose: Purpose = Purpose.V3) -> V3Link:
        raise AssertionError("a pipeline uses V2")

    @property
    def health(self) -> ReplicaHealth:
        raise AssertionError("a pipeline does not read")

    def note_failure(self, bookie: BookieId) -> None:
        raise AssertionError("a pipeline does not count failures")

    def now_s(self) -> float:
        return self.time_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        self.timers.append(callback)
        return asyncio.TimerHandle(delay_s, callback, (), asyncio.get_running_loop())

    # ---- PipelineOwner
    def adds_confirmed(self, up_to: EntryId) -> None:
        self.confirmed.append(up_to)

    def adds_failed(self, error: LedgerError) -> None:
        self.failures.append(error)

    def replica_failed(self, bookie: BookieId, error: LedgerError) -> bool:
        self.dropped.append(bookie)
        return self.waits

    def adds_released(self) -> None:
        self.released += 1


async def test_the_length_is_that_of_the_last_confirmed_entry_even_within_a_run() -> None:
    world = _World()
    world.push(1, 10, 100)
    world.push(1000, 10000)
    lengths = []
    for entry in range(5):
        world.ack(_A, entry)
        world.ack(_B, entry)
        lengths.append(world.pipeline.confirmed_length)
    assert lengths == [1, 11, 111, 1111, 11111]
    assert world.confirmed == [0, 1, 2, 3, 4]


async def test_the_length_is_that_of_the_reported_entries_even_if_more_are_settled() -> None:
    world = _World()
    world.push(1)
    world.push(10)
    world.ack(_A, 0, 2)
    world.ack(_B, 0)
    world.pipeline.adds_stored(_B, EntryId(1), 1)  # its buffer of responses continues ...
    world.refuse(_C, BookieIoError("disk"), 0, 2)  # ... and the only bookie with unacknowledged entries is lost
    world.pipeline.stop(LedgerClosedError("enough"))
    assert (world.pipeline.confirmed, world.pipeline.confirmed_length) == (1, 11)
    other = _World()
    other.push(1)
    other.push(10)
    other.ack(_A, 0, 2)
    other.ack(_B, 0)
    other.pipeline.adds_stored(_B, EntryId(1), 1)
    other.pipeline.adds_refused(_C, EntryId(0), 2, BookieIoError("disk"))
    other.pipeline.stop(LedgerClosedError("enough"))
    assert (other.pipeline.confirmed, other.pipeline.confirmed_length) == (0, 1)


async def test_entries_that_a_bookie_stored_before_its_connection_broke_are_confirmed() -> None:
    world = _World()
    world.waits = True
    world.push(10)
    world.ack(_A, 0)
    world.pipeline.adds_stored(_B, EntryId(0), 1)  # the rest of the buffer violates the protocol
    world.pipeline.link_lost(_B, BookieIoError("nonsense"))
    assert world.confirmed == [0]


async def test_bytes_are_kept_until_every_living_replica_acknowledged() -> None:
    world = _World()
    world.push(10, 10)
    world.ack(_A, 0, 2)
    world.ack(_B, 0, 2)
    assert world.confirmed == [1]
    assert world.pipeline.pending_bytes > 0
    world.ack(_C, 0, 2)
    assert world.pipeline.pending_bytes == 0
    assert world.released == 1


async def test_a_failed_replica_is_sent_nothing_more_and_no_bytes_are_kept_for_it() -> None:
    world = _World()
    world.push(10)
    world.ack(_A, 0)
    world.ack(_B, 0)
    world.refuse(_C, BookieIoError("disk"), 0)
    assert world.dropped == [_C]
    assert world.pipeline.pending_bytes == 0
    world.push(10)
    assert world.links[_C].sent == [[0]]
    assert world.links[_A].sent == [[0], [1]]
    world.ack(_C, 1)
    world.ack(_A, 1)
    assert world.confirmed == [0], "a late acknowledgement of a failed replica does not count"


async def test_without_the_ack_quorum_the_pipeline_fails_once_and_confirms_nothing_more() -> None:
    world = _World()
    world.push(10, 10)
    world.ack(_A, 0, 2)
    world.refuse(_B, BookieIoError("disk"), 0)
    world.refuse(_C, BookieIoError("disk"), 0)
    world.ack(_B, 0, 2)
    world.ack(_C, 0, 2)
    assert [type(error) for error in world.failures] == [QuorumError]
    assert world.confirmed == []
    assert all(link.forgotten for link in world.links.values())


async def test_a_fence_at_one_replica_fails_the_pipeline() -> None:
    world = _World()
    world.push(10)
    world.refuse(_A, LedgerFencedError("fenced"), 0)
    world.ack(_B, 0)
    world.ack(_C, 0)
    assert [type(error) for error in world.failures] == [LedgerFencedError]
    assert world.confirmed == []


@pytest.mark.parametrize(
    ("quorums", "first", "again"), [((3, 3, 2), [0, 1, 2, 3], [1, 2, 3]), ((3, 2, 2), [0, 2, 3], [2, 3])]
)
async def test_only_entries_refused_by_an_overloaded_bookie_are_sent_again(
    quorums: tuple[int, int, int], first: list[int], again: list[int]
) -> None:
    world = _World(quorums)
    world.push(1, 2)
    world.push(3, 4)
    assert [entry for sent in world.links[_A].sent for entry in sent] == first
    world.ack(_A, 0)
    start = again[0]
    world.refuse(_A, TooManyRequestsError("full"), start, again[-1] - start + 1)
    assert len(world.timers) == 1
    world.timers[0]()
    assert world.links[_A].sent[-1] == again
    assert not world.dropped


async def test_a_silent_replica_is_given_up_after_the_timeout_but_not_one_that_responded() -> None:
    world = _World()
    world.push(1)
    world.ack(_A, 0)
    world.ack(_B, 0)
    world.time_s += 4.9
    for bookie in (_A, _B, _C):
        world.pipeline.check_overdue(bookie, world.time_s)
    assert world.dropped == []
    world.time_s += 0.2
    for bookie in (_A, _B, _C):
        world.pipeline.check_overdue(bookie, world.time_s)
    assert world.dropped == [_C]


async def test_a_replica_owes_what_it_has_not_acknowledged_until_it_is_given_up() -> None:
    world = _World()
    assert not world.pipeline.owes(_A)
    world.push(1, 1)
    world.ack(_A, 0)
    world.ack(_A, 1)
    world.ack(_B, 0)
    assert [world.pipeline.owes(bookie) for bookie in (_A, _B, _C)] == [False, True, True]
    world.refuse(_B, TooManyRequestsError("full"), 1, 1)
    assert world.pipeline.owes(_B), "it is sent the entry again"
    world.refuse(_C, BookieIoError("broken"), 0, 1)
    assert world.dropped == [_C] and not world.pipeline.owes(_C)


async def test_a_lost_link_fails_only_replicas_with_unacknowledged_entries() -> None:
    world = _World()
    world.push(1)
    world.ack(_A, 0)
    lost = BookieIoError("gone")
    world.pipeline.link_lost(_A, lost)
    assert world.dropped == []
    world.pipeline.link_lost(_B, lost)
    assert world.dropped == [_B]


async def test_a_stopped_pipeline_calls_its_owner_no_more() -> None:
    world = _World()
    world.push(1)
    world.pipeline.stop(LedgerClosedError("closed"))
    world.ack(_A, 0)
    world.ack(_B, 0)
    world.refuse(_C, LedgerFencedError("fenced"), 0)
    assert (world.confirmed, world.failures, world.dropped) == ([], [], [])


async def test_the_states_of_the_bookies_of_an_entry_tell_which_completed_its_quorum() -> None:
    world = _World()
    world.push(10)
    world.ack(_B, 0)
    world.ack(_C, 0)
    states = {_A: ReplicaState.WAITING, _B: ReplicaState.STORED, _C: ReplicaState.LAST}
    assert world.pipeline.replica_states(EntryId(0)) == states
    world.refuse(_A, BookieIoError("a disk failed"), 0)
    assert world.pipeline.replica_states(EntryId(0)) == states | {_A: ReplicaState.LOST}


async def test_only_the_bookies_of_an_entrys_write_set_have_a_state() -> None:
    world = _World((3, 2, 2))
    world.push(10, 10)
    assert set(world.pipeline.replica_states(EntryId(1))) == {_B, _C}
