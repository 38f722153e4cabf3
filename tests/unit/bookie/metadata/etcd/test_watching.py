"""A watch: the revision from which it continues, and when it must report lost events."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_bookie.metadata.etcd.proto import rpc_pb2 as rpc
from quire_bookie.metadata.etcd.watching import EtcdWatch
from quire_bookie.metadata.store import Event, EventKind, MetadataStats
from tests.sim.loop import SimLoop
from tests.unit.bookie.metadata.etcd.fake_connection import FakeConnection, FakeStream

RESYNC = Event(EventKind.RESYNC, "/w/")
BROKEN = MetadataUnavailableError("broken")


def created(revision: int) -> rpc.WatchResponse:
    return rpc.WatchResponse(header=rpc.ResponseHeader(revision=revision), created=True)


def progress(revision: int) -> rpc.WatchResponse:
    return rpc.WatchResponse(header=rpc.ResponseHeader(revision=revision))


def change(revision: int, *, version: int = 1, delete: bool = False) -> rpc.WatchResponse:
    kv = rpc.KeyValue(key=f"/w/{revision}".encode(), version=version, mod_revision=revision)
    kind = rpc.Event.DELETE if delete else rpc.Event.PUT
    return rpc.WatchResponse(header=rpc.ResponseHeader(revision=revision + 5), events=[rpc.Event(type=kind, kv=kv)])


class Scenario:
    """A watch on a fake connection."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.stats = MetadataStats()
        self.watch = EtcdWatch(self.connection, "/w/", self.stats)  # type: ignore[arg-type]

    async def opened(self, revision: int) -> FakeStream:
        """Open the watch at a revision of the cluster."""
        self.connection.on_stream = lambda stream: stream.answer(created(revision))
        await self.watch.open(10)
        self.connection.on_stream = lambda stream: None
        stream = await self.connection.opened.get()
        assert (await self.start_of(stream)) == 0
        return stream

    async def reopened(self) -> tuple[FakeStream, int]:
        """Return the next stream and the revision that it requests."""
        stream = await self.connection.opened.get()
        return stream, await self.start_of(stream)

    @staticmethod
    async def start_of(stream: FakeStream) -> int:
        request = (await stream.sent.get()).create_request
        assert (request.key, request.range_end, request.progress_notify) == (b"/w/", b"/w0", True)
        return int(request.start_revision)

    async def take(self, count: int) -> list[Event]:
        stream = aiter(self.watch)
        return [await anext(stream) for _ in range(count)]


def play(script: Callable[[Scenario], Awaitable[None]]) -> None:
    """Run a script in virtual time."""

    async def run() -> None:
        scenario = Scenario()
        await script(scenario)
        await scenario.watch.close()

    loop = SimLoop(1)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_puts_and_deletes_become_events() -> None:
    async def script(scenario: Scenario) -> None:
        stream = await scenario.opened(10)
        for message in (change(11), change(12, version=2), change(13, delete=True)):
            stream.answer(message)
        kinds = [EventKind.CREATED, EventKind.MODIFIED, EventKind.DELETED]
        expected = [Event(kind, f"/w/{revision}") for kind, revision in zip(kinds, (11, 12, 13), strict=True)]
        assert await scenario.take(3) == expected

    play(script)


@pytest.mark.parametrize(
    ("messages", "resumes_at"),
    [([], 11), ([change(14)], 15), ([progress(20)], 21), ([change(14), progress(20), change(22)], 23)],
)
def test_a_broken_stream_continues_after_the_last_received_event(
    messages: list[rpc.WatchResponse], resumes_at: int
) -> None:
    async def script(scenario: Scenario) -> None:
        stream = await scenario.opened(10)
        for message in messages:
            stream.answer(message)
        stream.answer(BROKEN)
        second, start = await scenario.reopened()
        assert start == resumes_at
        assert stream.cancelled
        second.answer(created(50))
        second.answer(change(resumes_at + 3))
        seen = await scenario.take(len([message for message in messages if message.events]) + 1)
        assert seen[-1] == Event(EventKind.CREATED, f"/w/{resumes_at + 3}")
        assert RESYNC not in seen

    play(script)


def test_streams_that_break_before_they_are_accepted_are_retried_from_the_same_revision() -> None:
    async def script(scenario: Scenario) -> None:
        (await scenario.opened(10)).answer(BROKEN)
        for _ in range(3):
            stream, start = await scenario.reopened()
            assert start == 11
            stream.answer(BROKEN)
        stream, start = await scenario.reopened()
        stream.answer(created(11))
        stream.answer(change(11))
        assert await scenario.take(1) == [Event(EventKind.CREATED, "/w/11")]
        assert scenario.stats.watches_reopened == 1

    play(script)


def test_an_unreachable_cluster_is_retried_until_it_is_back() -> None:
    async def script(scenario: Scenario) -> None:
        stream = await scenario.opened(10)
        scenario.connection.away = True
        stream.answer(BROKEN)
        await asyncio.sleep(600)
        scenario.connection.away = False
        second, start = await scenario.reopened()
        assert start == 11
        second.answer(created(11))

    play(script)


@pytest.mark.parametrize("while_open", [True, False])
def test_compaction_causes_a_resync_and_a_restart_from_the_present(while_open: bool) -> None:
    async def script(scenario: Scenario) -> None:
        cancelled = rpc.WatchResponse(header=rpc.ResponseHeader(revision=90), canceled=True, compact_revision=80)
        stream = await scenario.opened(10)
        if not while_open:
            stream.answer(BROKEN)
            stream, _ = await scenario.reopened()
        stream.answer(cancelled)
        second, start = await scenario.reopened()
        assert start == 0
        second.answer(BROKEN)  # the RESYNC must survive this
        third, start = await scenario.reopened()
        assert start == 0
        third.answer(created(100))
        third.answer(change(101))
        assert await scenario.take(2) == [RESYNC, Event(EventKind.CREATED, "/w/101")]
        third.answer(BROKEN)
        _, start = await scenario.reopened()
        assert start == 102

    play(script)


def test_a_cluster_restored_from_a_backup_causes_a_resync() -> None:
    async def script(scenario: Scenario) -> None:
        stream = await scenario.opened(100)
        stream.answer(BROKEN)
        second, start = await scenario.reopened()
        assert start == 101
        second.answer(created(60))
        third, start = await scenario.reopened()
        assert start == 0
        assert second.cancelled
        third.answer(created(61))
        third.answer(change(62))
        assert await scenario.take(2) == [RESYNC, Event(EventKind.CREATED, "/w/62")]

    play(script)


def test_a_cancelled_watch_without_compaction_continues_where_it_was() -> None:
    async def script(scenario: Scenario) -> None:
        stream = await scenario.opened(10)
        stream.answer(rpc.WatchResponse(canceled=True, cancel_reason="no leader"))
        second, start = await scenario.reopened()
        assert start == 11
        second.answer(created(11))

    play(script)


def test_opening_fails_if_no_stream_is_accepted_in_time() -> None:
    async def script(scenario: Scenario) -> None:
        with pytest.raises(MetadataUnavailableError, match="did not accept"):
            await scenario.watch.open(5)
        assert scenario.connection.opened.get_nowait().gave_up

    play(script)
