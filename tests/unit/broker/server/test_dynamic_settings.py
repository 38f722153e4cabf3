"""Settings that are changed while brokers run: which values are used, and that each broker follows the node."""

import asyncio
import random

import pytest

from quire_broker.errors import NotAllowedError
from quire_broker.policies.store import CONFIGURATION, PolicyStore, encode_json
from quire_broker.server.dynamic_settings import (
    STOP,
    Changeable,
    DynamicSettings,
    changed_by,
    flaw_of_setting,
)
from quire_broker.settings.rates import RateSettings
from tests.sim.loop import SimLoop, simulate
from tests.sim.metadata import SimMetadata, SimMetadataStore

BASE = Changeable(RateSettings(publish_messages=7), 10.0)
RATE = "dispatchThrottlingRatePerTopicInMsg"


@pytest.mark.parametrize(
    ("name", "value", "flaw"),
    [
        (RATE, "0", None),
        (RATE, str(2**31 - 1), None),
        (RATE, str(2**31), "use an integer from 0 to 2147483647"),
        (RATE, "-1", "use an integer"),
        (RATE, "\u0663", "use an integer"),
        (RATE, "9" * 5000, "use an integer"),
        (STOP, "1", None),
        (STOP, "0", "use an integer from 1"),
        ("subscribeRatePeriodPerConsumerInSecond", "0", "use an integer from 1"),
        ("maxMessageSize", "5", "cannot be changed at run time"),
    ],
)
def test_a_value_is_checked(name: str, value: str, flaw: str | None) -> None:
    found = flaw_of_setting(name, value)
    assert found is None if flaw is None else found is not None and flaw in found


def test_valid_values_go_before_the_configuration() -> None:
    assert changed_by(BASE, {}) == BASE
    found = changed_by(BASE, {RATE: "3", STOP: "2500", "maxMessageSize": "5", "dispatchThrottlingRateInMsg": "x"})
    assert found == Changeable(RateSettings(publish_messages=7, dispatch_messages=3), 2.5)


class Broker:
    """A broker's settings, and the policies that tell it of changes."""

    def __init__(self, server: SimMetadata) -> None:
        store = SimMetadataStore(server)
        self.used: list[Changeable] = []
        self.settings = DynamicSettings(store, BASE, self._use)
        policies = PolicyStore(store, "c1")
        policies.on_settings = lambda: self.tasks.append(asyncio.ensure_future(self.settings.load()))
        self.tasks = [asyncio.ensure_future(policies.follow())]

    async def _use(self, wanted: Changeable) -> None:
        self.used.append(wanted)


def test_each_broker_follows_changes_of_any() -> None:
    async def scenario(_: SimLoop) -> None:
        server = SimMetadata(random.Random(1))
        server.write(CONFIGURATION, encode_json({STOP: "5000", RATE: "no number"}), None)
        found = [Broker(server), Broker(server)]
        brokers = [one.settings for one in found]
        await asyncio.sleep(1)
        assert [one.in_force.stop_s for one in brokers] == [5.0, 5.0]
        await brokers[0].change(RATE, "9")
        await asyncio.sleep(1)
        assert [one.in_force.rates.dispatch_messages for one in brokers] == [9, 9]
        await asyncio.gather(brokers[0].change(STOP, None), brokers[1].change(RATE, None))
        await asyncio.sleep(1)
        assert [one.in_force for one in brokers] == [BASE, BASE]
        assert [one.used[-1] for one in found] == [BASE, BASE]
        with pytest.raises(NotAllowedError, match="cannot be changed"):
            await brokers[0].change("maxMessageSize", "5")
        for one in found:
            one.tasks[0].cancel()
            await asyncio.gather(*one.tasks, return_exceptions=True)

    simulate(scenario, seed=1)
