"""Derives settings from the limits of a pod: caches and buffers from memory, workers from CPU. Pure.

Only a limit in `resources` counts, and only for settings without a value: `sizing` does the reverse for a pod without
limits. What a process needs beside its caches, its connections, the derived buffers and a tenth of the limit are set
aside first; so everything together stays below the limit. docs/kubernetes/operations.md has the formulas.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from quire_operator.api.bookie_spec import BookieSpec
from quire_operator.api.managed_ledger_spec import ManagedLedgerSpec
from quire_operator.api.quantities import cores, quantity_bytes, quantity_mib
from quire_operator.api.shared import Resources
from quire_operator.builders.toml import Value

MIB = 2**20
BOOKIE_PROCESS_MIB = 170
"""Interpreter, libraries, and the journal's queue of 64 MiB."""
BROKER_PROCESS_MIB = 200
"""Interpreter, libraries, and topics."""
RECOVERY_PROCESS_MIB, RECOVERY_WORKER_MIB = 128, 64
SPARE_PARTS = 10
"""One part of the limit stays free: Python and malloc keep freed memory."""
BOOKIE_LEAST_MIB, BROKER_LEAST_MIB = 288, 384
"""The least limits with which everything at its minimum fits."""
CONNECTIONS_LEAST_MIB, CONNECTIONS_MOST_MIB = 40, 512
"""The process takes a quarter of its limit for connections, within these bounds."""
GROUP_MIB = 8
READS_PER_CORE, READS_LEAST, READS_MOST = 32, 32, 256
WORKERS_MOST = 8
CONNECTIONS_KEY, PUBLISH_KEY, OFFLOAD_KEY = (
    "connectionMemoryMaxMb",
    "maxMessagePublishBufferSizeInMB",
    "offloadReadCacheSizeMB",
)
GROUP_KEY, READS_KEY = "journalBufferedWritesThreshold", "readsAtOnceMax"
BROKER_CACHE_DEFAULT_MIB = 64
READ_CACHE_PARTS = 4
"""One part of a broker's cache is for entries that were read; the rest is for appended ones."""


@dataclass(frozen=True, slots=True)
class Caches:
    """The caches of a bookie, in MiB."""

    write_mib: int = 128
    read_mib: int = 64
    index_mib: int = 64

    @property
    def sum_mib(self) -> int:
        """All of them."""
        return self.write_mib + self.read_mib + self.index_mib


@dataclass(frozen=True, slots=True)
class _Share:
    """One cache: its part of what is left, and its bounds in MiB."""

    parts: int
    least: int
    most: int


_SHARES = {
    "write_mib": _Share(2, 24, 2048),
    "read_mib": _Share(1, 8, 65536),
    "index_mib": _Share(1, 8, 2048),
}


def memory_limit_mib(resources: Resources) -> int | None:
    """Return the limit of memory that the user set, rounded down; None without one, or if it is not plain."""
    text = resources.limits.get("memory")
    try:
        return None if text is None else quantity_bytes(text) // MIB
    except ValueError:
        return None  # the API server accepts more forms, such as 1e9


def cpu_limit(resources: Resources) -> float | None:
    """Return the limit of CPU that the user set, in cores."""
    text = resources.limits.get("cpu")
    try:
        return None if text is None else cores(text)
    except ValueError:
        return None


def bookie_caches(spec: BookieSpec) -> Caches:
    """Return the caches of a bookie: as in the spec, else from the limit of memory, else the defaults."""
    engine = spec.engine
    texts = {"write_mib": engine.write_cache, "read_mib": engine.read_cache, "index_mib": engine.index_cache}
    given = {name: quantity_mib(text) for name, text in texts.items() if text is not None}
    limit = memory_limit_mib(spec.resources)
    if limit is None:
        return Caches(**given)
    left = limit - BOOKIE_PROCESS_MIB - _connections_mib(limit, engine.settings) - limit // SPARE_PARTS
    left -= sum(given.values())
    open_shares = {name: share for name, share in _SHARES.items() if name not in given}
    parts = sum(share.parts for share in open_shares.values())
    derived = {
        name: _within(left * share.parts // parts, share.least, share.most) for name, share in open_shares.items()
    }
    return Caches(**given, **derived)


def bookie_tuning(spec: BookieSpec) -> dict[str, Value]:
    """Return the settings of a bookie that follow from its limits, by their keys; caches not included."""
    found: dict[str, Value] = {}
    memory, cpu = memory_limit_mib(spec.resources), cpu_limit(spec.resources)
    if memory is not None and memory < GROUP_MIB * 128:
        found[GROUP_KEY] = max(1, memory // 128) * MIB
    if cpu is not None:
        found[READS_KEY] = _within(floor(READS_PER_CORE * cpu), READS_LEAST, READS_MOST)
    return {key: value for key, value in found.items() if key not in spec.engine.settings}


def broker_cache_mib(spec: ManagedLedgerSpec) -> int:
    """Return the cache of a broker: as in the spec, else from the limit of memory, else the default."""
    brokers, limit = spec.brokers, memory_limit_mib(spec.brokers.resources)
    if brokers.cache is not None:
        return quantity_mib(brokers.cache)
    if limit is None:
        return BROKER_CACHE_DEFAULT_MIB
    buffers = {**_broker_buffers_mib(limit), **_given_mib(brokers.settings, PUBLISH_KEY, OFFLOAD_KEY)}
    left = limit - BROKER_PROCESS_MIB - _connections_mib(limit, brokers.settings) - limit // SPARE_PARTS
    return _within(left - sum(buffers.values()), 8, 4096)


def broker_cache_shares(spec: ManagedLedgerSpec) -> dict[str, Value]:
    """Return the settings of the cache of a broker: the shares of `broker_cache_mib`."""
    whole = broker_cache_mib(spec)
    read = max(1, whole // READ_CACHE_PARTS)
    return {"managedLedgerCacheSizeMB": max(1, whole - read), "managedLedgerReadCacheSizeMB": read}


def broker_tuning(spec: ManagedLedgerSpec) -> dict[str, Value]:
    """Return the settings of a broker that follow from its limits, by their keys; the cache not included."""
    limit = memory_limit_mib(spec.brokers.resources)
    if limit is None:
        return {}
    found: dict[str, Value] = dict(_broker_buffers_mib(limit))
    return {key: value for key, value in found.items() if key not in spec.brokers.settings}


def recovery_workers(spec: BookieSpec) -> int | None:
    """Return how many ledgers an auto-recovery process copies at once, from its limits; None without a limit of CPU."""
    resources = spec.auto_recovery.resources
    cpu, memory = cpu_limit(resources), memory_limit_mib(resources)
    if cpu is None:
        return None
    room = WORKERS_MOST if memory is None else (memory - RECOVERY_PROCESS_MIB) // RECOVERY_WORKER_MIB
    return _within(min(floor(cpu), room), 1, WORKERS_MOST)


def derived_of_bookies(spec: BookieSpec) -> dict[str, str]:
    """Return the settings that follow from limits, for the status: keys of bookies, and that of auto-recovery."""
    found: dict[str, Value] = dict(bookie_tuning(spec))
    if memory_limit_mib(spec.resources) is not None:
        caches, engine = bookie_caches(spec), spec.engine
        rows = (
            ("dbStorage_writeCacheMaxSizeMb", engine.write_cache, caches.write_mib),
            ("dbStorage_readAheadCacheMaxSizeMb", engine.read_cache, caches.read_mib),
            ("dbStorage_rocksDB_blockCacheSize", engine.index_cache, caches.index_mib * MIB),
        )
        found |= {key: value for key, given, value in rows if given is None}
    workers = recovery_workers(spec)
    if workers is not None:
        found["replicationWorkers"] = workers
    return _texts(found)


def derived_of_brokers(spec: ManagedLedgerSpec) -> dict[str, str]:
    """Return the settings of brokers that follow from limits, for the status."""
    found = broker_tuning(spec)
    if spec.brokers.cache is None and memory_limit_mib(spec.brokers.resources) is not None:
        found |= broker_cache_shares(spec)
    return _texts(found)


def _broker_buffers_mib(limit: int) -> dict[str, int]:
    return {PUBLISH_KEY: _within(limit // 8, 16, 512), OFFLOAD_KEY: _within(limit // 16, 8, 256)}


def _connections_mib(limit: int, settings: Mapping[str, str]) -> int:
    given = _given_mib(settings, CONNECTIONS_KEY).get(CONNECTIONS_KEY, 0)
    return given or _within(limit // 4, CONNECTIONS_LEAST_MIB, CONNECTIONS_MOST_MIB)


def _given_mib(settings: Mapping[str, str], *keys: str) -> dict[str, int]:
    """Return the values of a user's settings that are whole numbers of MiB; the process refuses others."""
    return {key: int(settings[key]) for key in keys if settings.get(key, "").isdecimal()}


def _within(value: int, least: int, most: int) -> int:
    return max(least, min(most, value))


def _texts(found: Mapping[str, Value]) -> dict[str, str]:
    return {key: str(value) for key, value in sorted(found.items())}
