"""The queue of appends: order, batches that are confirmed in part, and answers."""

from functools import partial

import pytest

from quire_bookie.errors import LedgerError, QuireError
from quire_broker.managed_ledger.appending.append_queue import AppendBatch, AppendQueue
from quire_broker.managed_ledger.position import Position

LEDGER = 7


class Answers:
    """Collects what the callbacks receive, by the text of the entry."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Position | None, QuireError | None]] = []

    def put(self, queue: AppendQueue, *texts: str) -> None:
        for text in texts:
            queue.waiting.append(text.encode())
            queue.waiting_dones.append(partial(self._take, text))

    def _take(self, text: str, at: Position | None, error: QuireError | None) -> None:
        self.rows.append((text, at, error))


def send(queue: AppendQueue, first: int, count: int) -> None:
    entries, dones = queue.take(count)
    queue.sent(AppendBatch(first, entries, dones, sum(map(len, entries))))


def test_appends_are_answered_in_order_also_when_a_batch_is_confirmed_in_part() -> None:
    queue, answers = AppendQueue(), Answers()
    answers.put(queue, "a", "b", "c", "d")
    send(queue, 0, 3)
    send(queue, 3, 1)
    for up_to, wanted in ((1, ["a", "b"]), (1, ["a", "b"]), (3, ["a", "b", "c", "d"])):
        for batch in queue.take_confirmed(up_to):
            queue.answer(LEDGER, batch)
        assert [text for text, _, _ in answers.rows] == wanted
    assert [at for _, at, _ in answers.rows] == [Position(LEDGER, number) for number in range(4)]
    assert not queue.in_flight


def test_entries_in_flight_wait_again_before_waiting_entries() -> None:
    queue, answers = AppendQueue(), Answers()
    answers.put(queue, "a", "b", "c")
    send(queue, 0, 2)
    assert queue.requeue()
    assert queue.waiting == [b"a", b"b", b"c"]
    assert queue.stats.resubmitted == 2
    assert not queue.requeue(), "nothing is in flight now"


def test_a_gap_between_batches_is_a_fault_of_the_caller() -> None:
    queue, answers = AppendQueue(), Answers()
    answers.put(queue, "a", "b")
    send(queue, 0, 1)
    with pytest.raises(AssertionError, match="no gaps"):
        send(queue, 2, 1)


def test_an_entry_that_no_ledger_accepts_fails_alone() -> None:
    queue, answers = AppendQueue(), Answers()
    answers.put(queue, "a", "bbbb", "c")
    error = LedgerError("too large")
    assert queue.fail_oversized(3, error)
    assert answers.rows == [("bbbb", None, error)]
    assert queue.waiting == [b"a", b"c"]
    assert not queue.fail_oversized(3, error)


def test_a_failure_answers_everything_once_and_a_callback_that_raises_stops_none() -> None:
    queue, answers = AppendQueue(), Answers()
    answers.put(queue, "a", "b")
    send(queue, 0, 1)

    def raises(at: Position | None, error: QuireError | None) -> None:
        raise RuntimeError("a fault of the callback")

    queue.put_back([b"x"], [raises])
    error = LedgerError("gone")
    queue.fail(error)
    queue.fail(error)
    assert answers.rows == [("a", None, error), ("b", None, error)]
    assert queue.stats.failed == 3
