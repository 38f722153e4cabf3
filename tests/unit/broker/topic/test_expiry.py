"""Checks of the loaded topics: which publish times count, and that no content of a namespace ends the checks."""

import random
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from quire_broker.errors import ServiceNotReadyError
from quire_broker.names import NamespaceName, parse_topic
from quire_broker.policies.store import PolicyStore
from quire_broker.topic.expiry import Expiry
from tests.sim.metadata import SimMetadata, SimMetadataStore

NOW_MS = 1_700_000_000_000


class Clock:
    def now_ms(self) -> int:
        return NOW_MS


class Subscription:
    """Records its calls."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed, self.cursor, self._error = False, SimpleNamespace(backlog=1), error
        self.told: list[int] = []

    async def expire(self, before_ms: int) -> None:
        if self._error is not None:
            raise self._error
        self.told.append(before_ms)


async def _round(*topics: tuple[Any, Subscription]) -> None:
    store = PolicyStore(SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0))), "c1")
    await store.create_tenant("acme", {})
    loaded = []
    for number, (ttl, subscription) in enumerate(topics):
        await store.create_namespace(NamespaceName("acme", f"n{number}"), {"message_ttl_in_seconds": ttl})
        name = parse_topic(f"persistent://acme/n{number}/t")
        loaded.append(SimpleNamespace(name=name, closing=False, subscriptions={"s": subscription}, has_backlog=True))

    async def round_of_all() -> AsyncIterator[Any]:
        for each in loaded:
            yield each

    async def rules(topic: Any) -> Any:
        return await store.policies(topic.name.namespace)

    changed = SimpleNamespace(round=round_of_all, keep=lambda topic: None)
    await Expiry(SimpleNamespace(changed=lambda: changed, rules=rules), Clock()).round()  # type: ignore[arg-type]


async def test_messages_expire_by_the_time_of_their_namespace() -> None:
    subscription = Subscription()
    await _round((60, subscription))
    assert subscription.told == [NOW_MS - 60_000]


@pytest.mark.parametrize("ttl", [None, 0, -1, True, "60", [1], {"a": 1}, 0.5])
async def test_an_invalid_time_expires_nothing_and_the_next_topic_is_checked(ttl: Any) -> None:
    first, second = Subscription(), Subscription()
    await _round((ttl, first), (60, second))
    assert (first.told, len(second.told)) == ([], 1)


async def test_a_topic_whose_messages_cannot_expire_now_does_not_stop_the_others() -> None:
    second = Subscription()
    await _round((60, Subscription(ServiceNotReadyError("it moves"))), (60, second))
    assert len(second.told) == 1
