import pytest

from quire_bookie.env.backoff import Backoff, pause_after
from quire_bookie.env.chance import SystemChance


def test_pauses_double_up_to_the_bound_and_begin_again_after_a_reset() -> None:
    backoff = Backoff((0.5, 3.0))
    assert [backoff.grow() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.grow() == 0.5


def test_with_chance_each_pause_is_between_half_of_it_and_the_whole() -> None:
    backoff = Backoff((1.0, 4.0), SystemChance())
    for expected in (1.0, 2.0, 4.0, 4.0):
        assert expected / 2 <= backoff.grow() <= expected


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 0.5), (2, 1.0), (5, 8.0), (6, 10.0), (10_000, 10.0)])
def test_a_pause_after_failures(failures: int, pause_s: float) -> None:
    assert pause_after(failures, (0.5, 10.0)) == pause_s
