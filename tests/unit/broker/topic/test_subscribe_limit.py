"""The rate at which a consumer may subscribe, on the loop's clock."""

import asyncio

import pytest

from quire_broker.errors import NotAllowedError
from quire_broker.limits import SUBSCRIBERS_COUNTED_MAX
from quire_broker.policies.rates import SubscribeRate
from quire_broker.topic.subscribe_limit import SubscribeLimit
from tests.sim.loop import SimLoop, simulate


def _admitted(limit: SubscribeLimit, times: int, consumer_id: int = 1) -> int:
    """Subscribe this often. Return how often it was permitted."""
    count = 0
    for _ in range(times):
        try:
            limit.admit("10.0.0.1", "c", consumer_id)
        except NotAllowedError:
            continue
        count += 1
    return count


def test_each_consumer_may_subscribe_as_often_as_the_rate_permits_in_each_period() -> None:
    async def scenario(loop: SimLoop) -> list[int]:
        limit = SubscribeLimit()
        found = [_admitted(limit, 50)]
        limit.use(SubscribeRate(2, 30))
        found += [_admitted(limit, 5), _admitted(limit, 5, consumer_id=2)]
        await asyncio.sleep(29)
        found.append(_admitted(limit, 5))
        await asyncio.sleep(1)
        found.append(_admitted(limit, 5))
        limit.use(SubscribeRate(3, 30))
        found.append(_admitted(limit, 5))
        limit.use(SubscribeRate())
        return [*found, _admitted(limit, 50)]

    assert simulate(scenario, seed=1) == [50, 2, 2, 0, 2, 3, 50]


def test_only_so_many_consumers_are_counted_and_the_error_names_the_rate() -> None:
    async def scenario(loop: SimLoop) -> int:
        limit = SubscribeLimit()
        limit.use(SubscribeRate(1, 30))
        for number in range(SUBSCRIBERS_COUNTED_MAX):
            limit.admit("10.0.0.1", "c", number)
        with pytest.raises(NotAllowedError, match="consumer 'c' subscribed 1 times within 30 s"):
            limit.admit("10.0.0.1", "c", 0)
        limit.admit("10.0.0.1", "c", -1)
        limit.admit("10.0.0.1", "c", 0)
        return len(limit._counts)

    assert simulate(scenario, seed=1) == SUBSCRIBERS_COUNTED_MAX
