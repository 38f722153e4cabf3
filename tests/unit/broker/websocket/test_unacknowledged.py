"""Which messages a consumer's client holds, and which entries are delivered again when."""

from quire_broker.websocket.message_ids import MessageId
from quire_broker.websocket.unacknowledged import Unacknowledged

ONE, TWO = MessageId(1, 1), MessageId(1, 2)
PARTS = [MessageId(1, 3, -1, index, 3) for index in range(3)]


def test_a_batch_is_acknowledged_when_its_last_message_is() -> None:
    tracked = Unacknowledged(0, 60)
    tracked.received(PARTS[0].entry, 0b111)
    assert [tracked.acknowledged(PARTS[index]) for index in (1, 0, 2)] == [0b101, 0b100, 0]


def test_messages_that_were_acknowledged_before_do_not_count() -> None:
    tracked = Unacknowledged(0, 60)
    tracked.received(PARTS[0].entry, 0b110)
    assert [tracked.acknowledged(PARTS[index]) for index in (1, 2)] == [0b100, 0]


def test_a_batch_of_an_earlier_session_is_acknowledged_in_part() -> None:
    assert Unacknowledged(0, 60).acknowledged(PARTS[1]) == 0b101


def test_the_client_holds_a_message_until_it_answers() -> None:
    tracked = Unacknowledged(0, 60)
    for message in (ONE, TWO, ONE):
        tracked.delivered(message, 1.0)
    assert tracked.held == 2
    assert tracked.acknowledged(ONE) == 0 and tracked.held == 1
    tracked.refused(TWO, 2.0)
    assert tracked.held == 0


def test_a_refused_message_comes_again_after_the_delay() -> None:
    tracked = Unacknowledged(0, 60)
    tracked.refused(ONE, 1.0)
    tracked.refused(ONE, 30.0)
    tracked.refused(TWO, 2.0)
    assert tracked.next_s() == 61.0
    assert tracked.due(60.9) == []
    assert tracked.due(61.0) == [ONE.entry]
    assert tracked.due(100.0) == [TWO.entry] and tracked.next_s() is None


def test_a_message_without_answer_comes_again_after_the_timeout() -> None:
    tracked = Unacknowledged(5, 60)
    tracked.delivered(ONE, 1.0)
    tracked.delivered(TWO, 2.0)
    tracked.delivered(ONE, 3.0)
    assert tracked.next_s() == 7.0
    assert tracked.due(7.0) == [TWO.entry] and tracked.held == 1
    assert tracked.acknowledged(ONE) == 0 and tracked.next_s() is None


def test_what_is_tracked_has_a_bound() -> None:
    tracked = Unacknowledged(0, 60, tracked_max=2)
    for number in range(5):
        message = MessageId(1, number)
        tracked.delivered(message, 1.0)
        tracked.received(message.entry, 0b11)
        tracked.refused(MessageId(2, number), 1.0)
    assert tracked.held == 2
    assert tracked.due(1.0) == [(2, 0)], "the oldest comes again at once"


def test_messages_of_some_ledgers_are_forgotten() -> None:
    tracked = Unacknowledged(5, 60)
    for ledger_id in (1, 2):
        tracked.delivered(MessageId(ledger_id, 1), 1.0)
        tracked.received((ledger_id, 2), 0b11)
        tracked.refused(MessageId(ledger_id, 3), 1.0)
    tracked.forget({1})
    assert tracked.held == 1 and tracked.due(100.0) == [(2, 3), (2, 1)]
    assert tracked.acknowledged(MessageId(1, 2, -1, 0, 3)) == 0b110, "as of an earlier session"
    tracked.forget({2})
    assert tracked.held == 0
