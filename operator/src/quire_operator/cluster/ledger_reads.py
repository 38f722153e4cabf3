"""Reads what the brokers of a ManagedLedger have, once for all resources that declare a part of it.

A namespace is one response with all of its topics: hundreds of `Topic` resources share it. If no broker responds, that
is remembered for longer, so that those resources do not occupy every worker with timeouts.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, TypeVar

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.naming import BROKER, selector_text
from quire_operator.cluster.broker_endpoints import broker_endpoints, first_answer
from quire_operator.cluster.broker_rest import BrokerEndpoint, BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection
from quire_operator.plan.ledger_observation import NamespaceState, TenantState

KEPT_S = 5.0
SILENT_KEPT_S = 30.0
Key = tuple[str, str]
"""Uid of the ManagedLedger, and what was read."""
Places = tuple[dict[str, NamespaceState], dict[str, TenantState]]
"""The states of namespaces and of tenants, by name."""
T = TypeVar("T")


@dataclass(slots=True)
class _Read:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    answer: tuple[Any, BrokerEndpoint] | None = None
    at_s: float = float("-inf")

    def is_fresh(self, now_s: float) -> bool:
        return 0 <= now_s - self.at_s < (SILENT_KEPT_S if self.answer is None else KEPT_S)


class LedgerReads:
    """The recent reads of the process. All of them may be lost."""

    def __init__(self) -> None:
        self._reads: dict[Key, _Read] = {}

    def __len__(self) -> int:
        """Return the number of remembered reads."""
        return len(self._reads)

    async def get(
        self, key: Key, now_s: float, read: Callable[[], Awaitable[tuple[T, BrokerEndpoint] | None]]
    ) -> tuple[T, BrokerEndpoint] | None:
        """Return a recent answer, or read it; one read at a time for each key. Raises what `read` raises."""
        known = self._reads.setdefault(key, _Read())
        async with known.lock:
            if not known.is_fresh(now_s):
                known.answer, known.at_s = await read(), now_s
                # Reads that others wait for stay; a reader of a removed one keeps its answer.
                self._reads = {k: one for k, one in self._reads.items() if one.lock.locked() or one.is_fresh(now_s)}
        return known.answer

    def forget(self, uid: str) -> None:
        """Forget what was read of a ManagedLedger: something was changed."""
        self._reads = {key: one for key, one in self._reads.items() if key[0] != uid}


@dataclass(frozen=True, slots=True)
class LedgerBrokers:
    """The brokers of one ManagedLedger, as the resources that refer to it ask them."""

    kube: Kube
    rest: BrokerRest
    ledger: ManagedLedger
    """With the TLS settings in effect."""
    reads: LedgerReads
    now_s: float

    async def namespace(self, name: str) -> tuple[NamespaceState, BrokerEndpoint] | None:
        """Return the state of a namespace; None if no broker responds. Raises KubeError, RefusedError."""
        return await self._read(f"namespace {name}", lambda one: self.rest.namespace(one, name))

    async def tenant(self, name: str) -> tuple[TenantState, BrokerEndpoint] | None:
        """Return the state of a tenant; None if no broker responds. Raises KubeError, RefusedError."""
        return await self._read(f"tenant {name}", lambda one: self.rest.tenant(one, name))

    async def places(
        self, namespaces: Collection[str], tenants: Collection[str]
    ) -> tuple[Places, BrokerEndpoint] | None:
        """Return the state of several namespaces and tenants; None if one is not known. Raises KubeError, RefusedError.

        The namespace of the ManagedLedger itself is always read: whether a broker responds is known without names, too.
        """
        own = self.ledger.spec.namespace
        first = await self.namespace(own)
        if first is None:
            return None
        of_namespaces, of_tenants = {}, {}
        for name in sorted(namespaces):
            found = first if name == own else await self.namespace(name)
            if found is None:
                return None
            of_namespaces[name] = found[0]
        for name in sorted(tenants):
            tenant = await self.tenant(name)
            if tenant is None:
                return None
            of_tenants[name] = tenant[0]
        return (of_namespaces, of_tenants), first[1]

    async def _read(self, what: str, ask: Callable[[BrokerEndpoint], Awaitable[T]]) -> tuple[T, BrokerEndpoint] | None:
        if self.ledger.status.ready == 0:
            return None  # its own reconciliation asks the brokers

        async def read() -> tuple[T, BrokerEndpoint] | None:
            meta = self.ledger.meta
            pods = await self.kube.list(collection("v1", "Pod", meta.namespace), selector_text(meta.name, BROKER))
            return await first_answer(await broker_endpoints(self.kube, self.ledger, pods), ask)

        return await self.reads.get((self.ledger.meta.uid, what), self.now_s, read)
