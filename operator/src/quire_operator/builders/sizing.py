"""Derives the requests and limits of pods from their caches, for resources that the user did not set. Pure.

A pod without requests is the first to be killed when a node runs out of memory. Memory is what the caches may take, and
what a process needs beside them; the limit is twice that, for connections (a quarter of the limit) and short peaks. CPU
has no limit: throttling would only raise latencies. `tuning` does the reverse for limits that the user set.
"""

from quire_operator.api.bookie_spec import BookieSpec
from quire_operator.api.managed_ledger_spec import ManagedLedgerSpec
from quire_operator.api.proxy_spec import Proxy
from quire_operator.api.shared import Resources
from quire_operator.builders.tuning import bookie_caches, broker_cache_mib

CPU = "100m"
BOOKIE_MIB = 512
"""Interpreter and libraries, the states of ledgers, the journal's queue, adds in flight, and connections."""
BROKER_MIB = 640
"""Interpreter and libraries, topics, messages on their way to bookies (128 MiB by default), and connections."""
AUTO_RECOVERY_MIB = 256
PROXY_MIB = 256


def bookie_resources(spec: BookieSpec) -> Resources:
    """Return requests and limits of a bookie."""
    return completed(spec.resources, BOOKIE_MIB + bookie_caches(spec).sum_mib)


def broker_resources(spec: ManagedLedgerSpec) -> Resources:
    """Return requests and limits of a broker."""
    return completed(spec.brokers.resources, BROKER_MIB + broker_cache_mib(spec))


def auto_recovery_resources(spec: BookieSpec) -> Resources:
    """Return requests and limits of an auto-recovery process."""
    return completed(spec.auto_recovery.resources, AUTO_RECOVERY_MIB)


def proxy_resources(proxy: Proxy) -> Resources:
    """Return requests and limits of a proxy."""
    return completed(proxy.resources, PROXY_MIB)


def completed(wanted: Resources, memory_mib: int) -> Resources:
    """Return the wanted amounts, with defaults for memory and CPU if neither a request nor a limit names them."""
    requests, limits = dict(wanted.requests), dict(wanted.limits)
    named = requests.keys() | limits.keys()
    if "cpu" not in named:
        requests["cpu"] = CPU
    if "memory" not in named:
        requests["memory"], limits["memory"] = f"{memory_mib}Mi", f"{2 * memory_mib}Mi"
    return Resources(requests=requests, limits=limits)
