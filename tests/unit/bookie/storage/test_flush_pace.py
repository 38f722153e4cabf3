"""A flush that is behind takes more steps between two turns of the event loop, within a bound."""

from quire_bookie.model import LedgerId
from quire_bookie.storage.flush_pace import STEPS_MAX, FlushPace
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.write_cache import WriteCache
from tests.unit.bookie.storage.store import body_of, run_of

CACHE_BYTES = 1 << 20


def filled(cache: WriteCache, share: float) -> None:
    """Fill the active half up to a share of it."""
    info, entry = LedgerInfo(LedgerId(1), b"k"), 0
    while cache.active_share < share:
        cache.put(info, run_of(1, entry, [body_of(1, entry, 1000)]))
        entry += 1


def test_a_flush_that_is_ahead_takes_one_step_in_a_turn() -> None:
    cache = WriteCache(CACHE_BYTES)
    pace = FlushPace(cache, 100)
    assert pace.steps_in_turn() == 1
    pace.appended(60)
    filled(cache, 0.4)
    assert [pace.turn_is_due() for _ in range(3)] == [True, True, True]


def test_the_further_a_flush_is_behind_the_more_steps_it_takes() -> None:
    cache = WriteCache(CACHE_BYTES)
    pace = FlushPace(cache, 1000)
    filled(cache, 0.5)
    steps = list[int]()
    for _ in range(10):
        steps.append(pace.steps_in_turn())
        pace.appended(60)
    assert steps == sorted(steps, reverse=True)
    assert steps[0] == STEPS_MAX and steps[-1] < STEPS_MAX
    pace.appended(1000)
    assert pace.steps_in_turn() == 1


def test_the_steps_in_a_turn_are_bounded() -> None:
    cache = WriteCache(CACHE_BYTES)
    filled(cache, 0.99)
    pace = FlushPace(cache, 1000)
    due = [pace.turn_is_due() for _ in range(3 * STEPS_MAX)]
    assert due == ([False] * (STEPS_MAX - 1) + [True]) * 3


def test_a_flush_of_states_alone_takes_one_step_in_a_turn() -> None:
    cache = WriteCache(CACHE_BYTES)
    filled(cache, 0.99)
    assert FlushPace(cache, 0).turn_is_due()
