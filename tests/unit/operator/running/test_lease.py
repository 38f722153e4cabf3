"""When a candidate may take the lease, and when a holder may write."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from quire_operator.errors import UnreachableError
from quire_operator.running.lease import RENEW_DEADLINE_S, Leadership, LeaseLostError, Watched, may_take, watched
from tests.sim.loop import SimLoop, simulate


def lease(version: str, holder: str = "other", duration: int | None = 15) -> dict[str, Any]:
    spec = {"holderIdentity": holder} | ({} if duration is None else {"leaseDurationSeconds": duration})
    return {"metadata": {"resourceVersion": version}, "spec": spec}


def test_the_age_of_a_lease_is_the_time_it_was_observed_unchanged() -> None:
    first = watched(None, lease("1"), 100.0)
    assert watched(first, lease("1"), 110.0).since_s == 100.0
    assert watched(first, lease("2"), 110.0).since_s == 110.0


@pytest.mark.parametrize(
    ("holder", "since_s", "now_s", "taken"),
    [
        ("other", 100.0, 100.0, False),
        ("other", 100.0, 115.0, False),  # its whole duration must have passed
        ("other", 100.0, 115.1, True),
        ("me", 100.0, 100.0, True),
        ("", 100.0, 100.0, True),  # released
    ],
)
def test_a_lease_is_taken_only_if_it_was_not_renewed_for_its_duration(
    holder: str, since_s: float, now_s: float, taken: bool
) -> None:
    assert may_take(Watched("1", since_s, 15.0, holder), "me", now_s) is taken


def test_a_lease_without_a_duration_gets_the_default() -> None:
    assert watched(None, lease("1", duration=None), 0.0).duration_s == 15.0
    assert watched(None, {"metadata": {"resourceVersion": "1"}}, 0.0).holder == ""


class FakeKube:
    """Serves one lease, until the API server stops responding."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.away = False
        self.before_writing: Callable[[], None] = lambda: None

    async def get(self, _: str) -> dict[str, Any] | None:
        if self.away:
            raise UnreachableError("away")
        return self.lease

    async def create(self, _: str, lease: dict[str, Any]) -> None:
        await self.replace(_, lease)

    async def replace(self, _: str, lease: dict[str, Any]) -> None:
        self.before_writing()
        version = str(int(lease["metadata"].get("resourceVersion", "0")) + 1)
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": version}}


def test_a_suspended_process_writes_nothing_after_its_lease_may_be_lost() -> None:
    kube = FakeKube()
    leadership = Leadership(cast(Any, kube), "ns", "me", lambda: 0.0)
    kube.before_writing = leadership.check

    async def scenario(_: SimLoop) -> None:
        running = asyncio.ensure_future(leadership.run())
        await leadership.held.wait()
        await asyncio.sleep(60.0)
        leadership.check()
        leadership._renewed_s -= RENEW_DEADLINE_S  # the duration of the suspension
        with pytest.raises(LeaseLostError):
            leadership.check()
        with pytest.raises(LeaseLostError):
            await running
        assert kube.lease is not None
        await leadership.give_back()
        assert kube.lease["spec"]["holderIdentity"] == "me", "the last write may still be in flight"

    simulate(scenario, seed=1)


def test_a_held_lease_is_released() -> None:
    kube = FakeKube()
    leadership = Leadership(cast(Any, kube), "ns", "me", lambda: 0.0)

    async def scenario(_: SimLoop) -> None:
        running = asyncio.ensure_future(leadership.run())
        await leadership.held.wait()
        running.cancel()
        await leadership.give_back()
        assert kube.lease is not None
        assert kube.lease["spec"]["holderIdentity"] == ""

    simulate(scenario, seed=1)
