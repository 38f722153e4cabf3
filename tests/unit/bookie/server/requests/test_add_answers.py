"""Tests of responses gathered in one loop iteration: per connection, complete, in order, timed by arrival."""

from quire_bookie.env.slow_log import SlowLog
from quire_bookie.model import EntryId, LedgerId, Run
from quire_bookie.server.requests.add_answers import AddAnswers
from quire_bookie.server.requests.slow_adds import SlowAdds
from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.slow import SlowSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.messages import AddRequest, AddResponse, Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeConnection, FakeJournal
from tests.unit.bookie.server.scene import KEY, LEDGER, Scene, adds, entry_bytes


class Turn:
    """Counts requests of an end of the loop iteration."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> None:
        """Count a request."""
        self.asked += 1


def untold() -> SlowAdds:
    """Return one that logs nothing."""
    return SlowAdds(SlowLog(SlowSettings(0.0)), FakeJournal())


def run_of(first: int, count: int, arrived_s: float) -> AddRequest:
    """Return a run of V2."""
    entries = [entry_bytes(each) for each in range(first, first + count)]
    run = Run(LEDGER, EntryId(first), entries, EntryId(-1), sum(map(len, entries)))
    header = 0x0201_0000
    return AddRequest(run, KEY, False, False, False, LEDGER, EntryId(first), header, arrived_s=arrived_s)


async def test_the_responses_of_one_connection_leave_together_and_in_order() -> None:
    stats, turn, client = BookieStats(), Turn(), FakeConnection()
    answers = AddAnswers(stats, turn, untold())
    client.unanswered = 4
    for request in (run_of(0, 1, 0.0), run_of(5, 2, 0.0), run_of(9, 1, 0.0)):
        answers.add(client.real, request)
    assert (client.sent, turn.asked) == ([], 1)
    answers.send()
    assert len(client.sent) == 1 and client.unanswered == 0
    assert client.responses() == [
        AddResponse(Status.OK, LEDGER, EntryId(0)),
        AddResponse(Status.OK, LEDGER, EntryId(5), 2),
        AddResponse(Status.OK, LEDGER, EntryId(9)),
    ]


async def test_a_response_of_another_connection_sends_the_gathered_ones() -> None:
    answers, first, second = (
        AddAnswers(BookieStats(), Turn(), untold()),
        FakeConnection(),
        FakeConnection(),
    )
    answers.add(first.real, run_of(0, 1, 0.0))
    answers.add(second.real, run_of(1, 1, 0.0))
    assert (len(first.sent), len(second.sent)) == (1, 0)
    answers.send()
    answers.send()
    assert (len(first.sent), len(second.sent)) == (1, 1)


async def test_every_entry_is_timed_from_the_arrival_of_its_run() -> None:
    stats, client = BookieStats(), FakeConnection()
    answers = AddAnswers(stats, Turn(), untold())
    now_s = answers._loop.time()
    for request in (run_of(0, 3, now_s), run_of(3, 1, now_s), run_of(4, 2, now_s - 100.0)):
        answers.add(client.real, request)
    answers.send()
    assert stats.add_seconds.total == 6
    assert stats.add_seconds.counts[-1] == 2, "two entries took longer than the largest bound"


async def test_runs_of_both_generations_are_answered_in_their_own(scene: Scene) -> None:
    """Two connections of different generations have adds in the same loop iteration."""
    other = LedgerId(8)
    v3 = b"".join(
        client_codec.v3_add(7 + each, other, EntryId(each), KEY, entry_bytes(each, ledger=other)) for each in range(2)
    )
    third = FakeConnection()
    scene.bookie.handle(scene.connection.real, ServerCodec().feed(adds(0) + adds(5)))
    scene.bookie.handle(third.real, ServerCodec().feed(v3))
    await scene.turn()
    scene.journal.settle()
    assert [one.first for one in scene.connection.responses() if isinstance(one, AddResponse)] == [0, 5]
    assert [one.transaction for one in third.responses(3) if isinstance(one, AddResponse)] == [7, 8]


async def test_an_add_does_not_overtake_adds_that_wait_for_space(scene: Scene) -> None:
    await scene.stored(adds(0))
    scene.storage.has_space = False
    await scene.handle(adds(1))
    assert scene.connection.paused
    scene.storage.has_space = True
    await scene.handle(adds(2))
    assert scene.journal.appended[2:] == []
    scene.bookie.flush_soon(scene.connection.real)  # the next end of a loop iteration tries again
    scene.connection.flush = lambda: None  # type: ignore[attr-defined]
    await scene.turn()
    scene.journal.settle()
    assert scene.connection.responses() == [AddResponse(Status.OK, LEDGER, EntryId(1), 2)]
    assert not scene.connection.paused
