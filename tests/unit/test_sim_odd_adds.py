"""A simulated bookie that misses one add, or answers adds twice: only those frames change."""

import pytest

from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.wire import v2
from quire_bookie.wire.client_codec import ClientCodec, v2_adds, v2_read
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.messages import AddResponse, Status
from tests.sim.odd_adds import MissedAdd, answered_twice

LEDGER = LedgerId(5)
KEY = bytes(20)


def _adds(*entries: int) -> bytes:
    digest = Digest(DigestType.CRC32C, b"")
    stored = [(digest.encode_entry(LEDGER, EntryId(entry), EntryId(-1), 1, (b"x",)), b"x") for entry in entries]
    return b"".join(bytes(part) for part in v2_adds(KEY, stored))


def _answers(*entries: int) -> bytes:
    header = v2.answer_header(v2.VERSION, v2.ADD)
    return b"".join(v2.RESPONSE.pack(v2.ADD_RESPONSE_LENGTH, header, 0, LEDGER, entry) for entry in entries)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_bookie_misses_one_add_and_its_repetitions_and_takes_all_others(refuses: bool) -> None:
    missed = MissedAdd(refuses)
    read = v2_read(LEDGER, EntryId(7))
    taken, refusals = missed.pass_on(read + _adds(7, 8))
    assert taken == read + _adds(8)
    again, more = missed.pass_on(_adds(7))
    assert again == b""
    assert missed.pass_on(_adds(9)) == (_adds(9), b"")
    if not refuses:
        assert refusals == more == b""
        return
    assert refusals == more
    (answer,) = ClientCodec(2).feed(refusals)
    assert isinstance(answer, AddResponse)
    assert (answer.status, answer.ledger, answer.first, answer.count) == (Status.TOO_MANY_REQUESTS, LEDGER, 7, 1)


def test_answers_to_adds_come_twice_and_v3_stays_as_it_is() -> None:
    assert answered_twice(_answers(1, 2)) == _answers(1, 1, 2, 2)
    v3 = b"\x00\x00\x00\x02\x0a\x01"
    assert answered_twice(v3) == v3
