"""The rules and reports that a leader reads: rules are read again after a failure; each report has its true age."""

import asyncio
import json
import random

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_broker.balancing import cluster_view
from quire_broker.balancing.cluster_view import LoadBook, RuleBook
from quire_broker.balancing.plan.loads import BrokerId
from quire_broker.names import parse_namespace
from quire_broker.ownership.registration import BROKERS
from quire_broker.policies.store import ANTI_AFFINITY, PolicyStore
from tests.sim.metadata import SimMetadata, SimMetadataStore

NAMESPACE = parse_namespace("shop/orders")
NOW_MS = 1_700_000_000_000
A = BrokerId("a:1")
KEY = f"{BROKERS}/{A}"


class Clock:
    def now_ms(self) -> int:
        return NOW_MS


def stored(stated_ms: int, **fields: object) -> bytes:
    return json.dumps({"lastUpdate": stated_ms} | fields).encode()


def minutes_of(book: LoadBook) -> int:
    seen = book.snapshot()
    return round((seen.now_s - seen.brokers[A].reported_s) / 60)


@pytest.mark.parametrize(("stated_s", "minutes"), [(0, 0), (-600, 10), (600, 10)], ids=["now", "past", "future"])
async def test_a_report_that_a_leader_finds_is_as_old_as_it_states(stated_s: int, minutes: int) -> None:
    session = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    await session.put(KEY, stored(NOW_MS + stated_s * 1000))
    book = LoadBook(session, Clock())
    await book.read_all()
    assert minutes_of(book) == minutes


@pytest.mark.parametrize("again", ["read_one", "read_all"])
async def test_only_a_new_report_is_younger_whatever_the_clock_of_its_broker_shows(again: str) -> None:
    session = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    book, old_ms = LoadBook(session, Clock()), NOW_MS - 600_000

    async def read(value: bytes) -> int:
        await session.put(KEY, value)
        await asyncio.wait_for(book.read_one(KEY) if again == "read_one" else book.read_all(), 10)
        return minutes_of(book)

    assert await read(stored(old_ms)) == 10
    assert await read(stored(old_ms, draining=True)) == 10, "it drains, and measures nothing"
    assert book.snapshot().brokers[A].draining
    # An event of a watch comes when the report is made; after a gap of the watch only its own time is known.
    assert await read(stored(old_ms + 60_000)) == (0 if again == "read_one" else 9)
    book.forget(KEY)
    assert await read(stored(old_ms)) == 10, "it registers again with its last report"


@pytest.mark.parametrize("read", ["read_one", "read_all"])
async def test_a_bundle_that_has_moved_keeps_its_load_until_the_new_owner_has_measured_it(read: str) -> None:
    session = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    book, bundle = LoadBook(session, Clock()), "shop/orders/0x00000000_0xffffffff"

    async def rate(broker: str, stated_s: int, messages_per_s: float, topics_new: int) -> float:
        of_bundle = {"msgRateIn": messages_per_s, "topics": 4, "quireNewTopics": topics_new}
        fields = {"lastStats": {bundle: of_bundle}, "numBundles": 1, "msgRateIn": messages_per_s}
        await session.put(f"{BROKERS}/{broker}", stored(NOW_MS + stated_s * 1000, **fields))
        await (book.read_one(f"{BROKERS}/{broker}") if read == "read_one" else book.read_all())
        load = book.snapshot().brokers[BrokerId(broker)]
        assert load.messages_per_s == load.bundles[0].messages_per_s
        return load.bundles[0].messages_per_s

    assert await rate("a:1", -100, 50.0, 0) == 50.0
    assert await rate("b:1", -40, 0.0, 4) == 50.0
    assert await rate("b:1", -30, 1.0, 3) == 50.0
    assert await rate("b:1", -10, 40.0, 2) == 40.0


async def test_groups_that_could_not_be_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "ISOLATION_S", 3600.0)
    session = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    policies = PolicyStore(session, "c1")
    await policies.create_tenant(NAMESPACE.tenant, {})
    await policies.create_namespace(NAMESPACE, {"bundles": {"numBundles": 1}})
    book = RuleBook(session, policies)
    assert (await book.rules()).groups == {}
    await policies.set_local(NAMESPACE, ANTI_AFFINITY, "apart")
    policies.changes += 1  # as its watch does
    session.cut = True
    with pytest.raises(MetadataUnavailableError):
        await book.rules()
    session.reach()
    assert (await book.rules()).groups == {"shop/orders": "apart"}
