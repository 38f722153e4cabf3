"""Settings that follow from the limits of a pod: tables of values, and their sums never exceed the limit."""

from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.bookie_spec import BookieSpec
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import ManagedLedgerSpec
from quire_operator.builders import tuning
from quire_operator.builders.settings import bookie_settings, broker_settings, recovery_settings
from quire_operator.builders.tuning import Caches
from quire_operator.plan.spec_checks import bookie_faults, managed_ledger_faults
from tests.support.kube_resources import bookie, managed_ledger

LIMITS_MIB = [*range(256, 4096, 7), *range(4096, 300_000, 997)]


def limits(**amounts: str) -> dict[str, Any]:
    return {"limits": amounts}


def pool(**spec: Any) -> BookieSpec:
    return Bookie.model_validate(bookie(**spec)).spec


def ledger(**brokers: Any) -> ManagedLedgerSpec:
    return ManagedLedger.model_validate(managed_ledger(brokers=brokers)).spec


@pytest.mark.parametrize(
    ("memory", "engine", "caches"),
    [
        (None, {}, Caches(128, 64, 64)),
        (None, {"readCache": "1Gi"}, Caches(128, 1024, 64)),
        ("288Mi", {}, Caches(24, 8, 8)),
        ("512Mi", {}, Caches(81, 40, 40)),
        ("1Gi", {}, Caches(248, 124, 124)),
        ("2Gi", {}, Caches(581, 290, 290)),
        ("4Gi", {}, Caches(1502, 751, 751)),
        ("16Gi", {}, Caches(2048, 3516, 2048)),
        ("1Gi", {"writeCache": "64Mi"}, Caches(64, 216, 216)),
        ("1Gi", {"writeCache": "64Mi", "readCache": "64Mi", "indexCache": "64Mi"}, Caches(64, 64, 64)),
        ("1Gi", {"writeCache": "2Gi"}, Caches(2048, 8, 8)),
        ("1Gi", {"settings": {"connectionMemoryMaxMb": "100"}}, Caches(326, 163, 163)),
        ("1e9", {}, Caches(128, 64, 64)),
    ],
)
def test_the_caches_of_a_bookie_follow_from_its_limit_of_memory(
    memory: str | None, engine: dict[str, Any], caches: Caches
) -> None:
    given = pool(engine=engine, resources={} if memory is None else limits(memory=memory))
    assert tuning.bookie_caches(given) == caches


def test_a_request_is_no_limit() -> None:
    assert tuning.bookie_caches(pool(resources={"requests": {"memory": "8Gi"}})) == Caches()


def test_everything_in_a_bookie_together_stays_below_its_limit() -> None:
    for limit in LIMITS_MIB:
        if limit < tuning.BOOKIE_LEAST_MIB:
            continue
        caches = tuning.bookie_caches(pool(resources=limits(memory=f"{limit}Mi")))
        connections = max(40, min(512, limit // 4))
        assert caches.sum_mib + tuning.BOOKIE_PROCESS_MIB + connections <= limit, limit
        assert caches.write_mib >= 24 and caches.read_mib >= 8 and caches.index_mib >= 8, limit


@pytest.mark.parametrize(
    ("memory", "brokers", "cache", "publish", "offload"),
    [
        (None, {}, 64, None, None),
        ("384Mi", {}, 8, 48, 24),
        ("1Gi", {}, 274, 128, 64),
        ("4Gi", {}, 2207, 512, 256),
        ("64Gi", {}, 4096, 512, 256),
        ("1Gi", {"cache": "32Mi"}, 32, 128, 64),
        ("1Gi", {"settings": {"maxMessagePublishBufferSizeInMB": "28"}}, 374, None, 64),
        ("1Gi", {"settings": {"connectionMemoryMaxMb": "56"}}, 474, 128, 64),
        ("1Gi", {"settings": {"offloadReadCacheSizeMB": "x"}}, 274, 128, None),
    ],
)
def test_the_cache_and_the_buffers_of_a_broker_follow_from_its_limit_of_memory(
    memory: str | None, brokers: dict[str, Any], cache: int, publish: int | None, offload: int | None
) -> None:
    spec = ledger(**brokers, resources={} if memory is None else limits(memory=memory))
    assert tuning.broker_cache_mib(spec) == cache
    found = tuning.broker_tuning(spec)
    assert (found.get(tuning.PUBLISH_KEY), found.get(tuning.OFFLOAD_KEY)) == (publish, offload)


def test_everything_in_a_broker_together_stays_below_its_limit() -> None:
    for limit in LIMITS_MIB:
        if limit < tuning.BROKER_LEAST_MIB:
            continue
        spec = ledger(resources=limits(memory=f"{limit}Mi"))
        buffers = sum(int(str(value)) for value in tuning.broker_tuning(spec).values())
        connections = max(40, min(512, limit // 4))
        cache = tuning.broker_cache_mib(spec)
        assert cache + buffers + tuning.BROKER_PROCESS_MIB + connections <= limit, limit


@pytest.mark.parametrize(
    ("resources", "settings", "found"),
    [
        ({}, {}, {}),
        (limits(memory="1Gi"), {}, {}),
        (limits(memory="512Mi"), {}, {"journalBufferedWritesThreshold": 4 << 20}),
        (limits(memory="512Mi"), {"journalBufferedWritesThreshold": "1000000"}, {}),
        (limits(cpu="500m"), {}, {"readsAtOnceMax": 32}),
        (limits(cpu="2"), {}, {"readsAtOnceMax": 64}),
        (limits(cpu="3.5"), {}, {"readsAtOnceMax": 112}),
        (limits(cpu="64"), {}, {"readsAtOnceMax": 256}),
        (limits(cpu="64"), {"readsAtOnceMax": "7"}, {}),
        (limits(cpu="1e3"), {}, {}),
    ],
)
def test_journal_groups_and_reads_follow_from_the_limits(
    resources: dict[str, Any], settings: dict[str, str], found: dict[str, int]
) -> None:
    spec = pool(resources=resources, engine={"settings": settings})
    assert tuning.bookie_tuning(spec) == found
    assert {key: bookie_settings(spec)[key] for key in found} == found
    assert {key: bookie_settings(spec)[key] for key in settings} == settings


@pytest.mark.parametrize(
    ("resources", "workers"),
    [
        ({}, None),
        (limits(memory="1Gi"), None),
        (limits(cpu="250m"), 1),
        (limits(cpu="3"), 3),
        (limits(cpu="32"), 8),
        (limits(cpu="8", memory="512Mi"), 6),
        (limits(cpu="8", memory="64Mi"), 1),
    ],
)
def test_the_workers_of_auto_recovery_follow_from_its_limits(resources: dict[str, Any], workers: int | None) -> None:
    spec = pool(autoRecovery={"resources": resources})
    assert recovery_settings(spec).get("replicationWorkers") == workers


def test_the_status_has_what_is_derived_and_only_that() -> None:
    assert tuning.derived_of_bookies(pool()) == {}
    spec = pool(
        resources=limits(memory="512Mi", cpu="2"),
        engine={"readCache": "16Mi"},
        autoRecovery={"resources": limits(cpu="2")},
    )
    assert tuning.derived_of_bookies(spec) == {
        "dbStorage_writeCacheMaxSizeMb": "98",
        "dbStorage_rocksDB_blockCacheSize": str(49 << 20),
        "journalBufferedWritesThreshold": str(4 << 20),
        "readsAtOnceMax": "64",
        "replicationWorkers": "2",
    }
    assert tuning.derived_of_brokers(ledger()) == {}
    assert tuning.derived_of_brokers(ledger(resources=limits(memory="1Gi"))) == {
        "managedLedgerCacheSizeMB": "206",
        "managedLedgerReadCacheSizeMB": "68",
        "maxMessagePublishBufferSizeInMB": "128",
        "offloadReadCacheSizeMB": "64",
    }
    found = broker_settings(ledger(resources=limits(memory="1Gi")), pool())
    assert (found["managedLedgerCacheSizeMB"], found["managedLedgerReadCacheSizeMB"]) == (206, 68)
    smallest = tuning.broker_cache_shares(ledger(cache="1Mi"))
    assert smallest == {"managedLedgerCacheSizeMB": 1, "managedLedgerReadCacheSizeMB": 1}


@pytest.mark.parametrize(
    ("memory", "engine", "refused"),
    [
        ("287Mi", {}, True),
        ("288Mi", {}, False),
        ("64Mi", {"writeCache": "24Mi"}, False),
    ],
)
def test_a_limit_in_which_no_caches_fit_is_refused(memory: str, engine: dict[str, str], refused: bool) -> None:
    resource = Bookie.model_validate(bookie(resources=limits(memory=memory), engine=engine))
    found = bookie_faults(resource)
    assert bool(found) is refused
    if refused:
        assert found == [
            "resources.limits.memory is 287Mi, but caches that follow from a limit need 288Mi: raise it, or set "
            "engine.writeCache, readCache or indexCache"
        ]


@pytest.mark.parametrize(
    ("brokers", "refused"),
    [
        ({"resources": limits(memory="383Mi")}, True),
        ({"resources": limits(memory="384Mi")}, False),
        ({"resources": limits(memory="100Mi"), "cache": "1Mi"}, False),
    ],
)
def test_a_limit_in_which_no_cache_of_a_broker_fits_is_refused(brokers: dict[str, Any], refused: bool) -> None:
    resource = ManagedLedger.model_validate(managed_ledger(brokers=brokers))
    found = managed_ledger_faults(resource, Bookie.model_validate(bookie()), 3)
    assert bool(found) is refused
