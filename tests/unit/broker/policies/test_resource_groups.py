"""Resource groups: valid values, and how brokers divide a rate."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.policies.rates import DispatchRate, PublishRate
from quire_broker.policies.resource_groups import RATES, Demand, flaw_of_group, is_full, limits_of, part_of, rates_of

FULL = Demand()


def idle(used: float = 0.0) -> Demand:
    return Demand(used, False)


def parts(rate: int, *demands: Demand) -> list[int]:
    return [part_of(rate, one, [*demands[:place], *demands[place + 1 :]]) for place, one in enumerate(demands)]


def test_rates_that_are_not_above_zero_limit_nothing() -> None:
    assert rates_of({"publishRateInMsgs": 5, "publishRateInBytes": -1, "dispatchRateInMsgs": 0}) == (5, 0, 0, 0)
    assert rates_of({"publishRateInMsgs": "5"}) == rates_of(None) == (0, 0, 0, 0)
    assert limits_of((1, 2, 3, 4)) == (PublishRate(1, 2), DispatchRate(3, 4))


@pytest.mark.parametrize(
    "value",
    [
        *(7, None, {"publishRateInMsgs": "5"}, {"publishRateInMsgs": 2**31}, {"rate": 1}),
        *({name: -2} for name in RATES),
    ],
    ids=repr,
)
def test_a_value_of_another_form_is_refused(value: Any) -> None:
    assert "a resource group must be" in (flaw_of_group(value) or "")


def test_minus_one_is_no_limit_and_a_lower_rate_of_another_broker_limits_nothing() -> None:
    assert flaw_of_group(dict.fromkeys(RATES, -1)) is None
    assert flaw_of_group({"publishRateInMsgs": -2}) == (
        "a resource group must be an object whose field publishRateInMsgs is an integer from -1 to 2147483647"
    )
    assert rates_of(dict.fromkeys(RATES, -2)) == (0, 0, 0, 0)


def test_a_broker_alone_gets_the_whole_rate() -> None:
    assert parts(1000, FULL) == parts(1000, idle()) == [1000]


def test_brokers_that_use_their_whole_part_share_equally() -> None:
    assert parts(900, FULL, FULL, FULL) == [300, 300, 300]


def test_what_an_idle_broker_does_not_use_goes_to_a_busy_one() -> None:
    busy, resting = parts(1000, FULL, idle())
    assert (busy, resting) == (990, 10)


def test_a_broker_below_its_part_keeps_what_it_uses_and_a_quarter_more() -> None:
    busy, moderate = parts(1000, FULL, idle(200.0))
    assert (busy, moderate) == (740, 260)


def test_nobody_uses_much_then_the_rest_is_shared() -> None:
    assert parts(1000, idle(), idle(100.0)) == [442, 567] or sum(parts(1000, idle(), idle(100.0))) <= 1000
    assert min(parts(1000, idle(), idle(100.0))) > 400


def test_no_rate_is_no_limit_and_a_small_one_never_becomes_none() -> None:
    assert part_of(0, FULL, []) == 0
    assert parts(1, FULL, FULL, FULL) == [1, 1, 1]


@given(st.integers(100, 10**9), st.lists(st.tuples(st.floats(0, 1e9), st.booleans()), min_size=1, max_size=8))
def test_the_parts_together_are_the_rate(rate: int, demands: list[tuple[float, bool]]) -> None:
    found = parts(rate, *(Demand(*one) for one in demands))
    assert rate - len(found) <= sum(found) <= rate + len(found)


def test_a_broker_is_full_at_nine_tenths_of_its_part() -> None:
    assert is_full(90.0, 100) and not is_full(89.0, 100)
    assert not is_full(5.0, 0), "no limit is never reached"
