"""Observes resources that declare objects of the brokers: their ManagedLedger, the object, and who else declares it.

Reads only. What no broker answers is None. Only an unreachable API server is an error.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from quire_operator.api.bookie import Bookie
from quire_operator.api.declared import DeclaredResource
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.tenant import Tenant
from quire_operator.builders import Manifest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.memory import Memory
from quire_operator.cluster.observing import age_of, pools_on
from quire_operator.cluster.one_etcd import members
from quire_operator.cluster.paths import bookie_path, managed_ledger_path

Target = Callable[[Mapping[str, Any]], str]
"""Returns the name of the object that a manifest declares."""


async def ledger_of(kube: Kube, resource: DeclaredResource) -> ManagedLedger | None:
    """Return the ManagedLedger that a resource refers to; None if it certainly does not exist. Raises KubeError."""
    name = resource.spec.managed_ledger_ref.name
    found = await kube.get(managed_ledger_path(resource.meta.namespace, name))
    return None if found is None else ManagedLedger.model_validate(found)


async def owner_elsewhere(
    kube: Kube,
    memory: Memory,
    resource: DeclaredResource,
    ledger: ManagedLedger,
    target: Target,
    *,
    of_ledger: bool = False,
) -> str | None:
    """Return an older resource of the same kind that declares the same object; None if none does.

    `of_ledger`: only resources that refer to the same ManagedLedger can declare it; else all of the same cluster can.
    It decides whether an object is deleted with its resource: then the resources are read from the API server.
    """
    certain, place = resource.meta.deletion_timestamp is not None, ledger.meta.namespace if of_ledger else None
    mine, age = target(resource.plain()), age_of(resource.metadata)
    older = [
        item
        for item in await memory.all(kube, resource.KIND, for_certain=certain, namespace=place)
        if item["metadata"]["uid"] != resource.meta.uid and target(item) == mine and age_of(item["metadata"]) < age
    ]
    if not older:
        return None
    there = {_who(ledger)} if of_ledger else await _ledgers_on_cluster(kube, memory, ledger)
    for item in sorted(older, key=lambda one: age_of(one["metadata"])):
        where = item["metadata"]["namespace"]
        if (where, item["spec"]["managedLedgerRef"]["name"]) in there:
            return f"{resource.KIND} {where}/{item['metadata']['name']}"
    return None


async def declaring_ledger(kube: Kube, memory: Memory, ledger: ManagedLedger, namespace: str) -> str | None:
    """Return a ManagedLedger of the same cluster that declares this namespace of topics itself; None if none does."""
    same = [item for item in await memory.all(kube, "ManagedLedger") if item["spec"]["namespace"] == namespace]
    if not same:
        return None
    there = await _ledgers_on_cluster(kube, memory, ledger)
    for item in same:
        who = (item["metadata"]["namespace"], item["metadata"]["name"])
        if who in there:
            return f"ManagedLedger {who[0]}/{who[1]}"
    return None


async def declared_admins(kube: Kube, memory: Memory, ledger: ManagedLedger) -> dict[str, tuple[str, ...]]:
    """Return the admin roles by tenant, as Tenant resources that refer to this ManagedLedger declare them."""
    found = {}
    for item in await memory.all(kube, "Tenant", namespace=ledger.meta.namespace):
        spec = item["spec"]
        if spec["managedLedgerRef"]["name"] == ledger.meta.name and spec.get("adminRoles"):
            found[Tenant.name_in(item)] = tuple(spec["adminRoles"])
    return found


async def _ledgers_on_cluster(kube: Kube, memory: Memory, ledger: ManagedLedger) -> set[tuple[str, str]]:
    """Return namespace and name of the ManagedLedgers on the cluster of one; only itself if its pool is not there."""
    itself = {_who(ledger)}
    found = await kube.get(bookie_path(ledger.meta.namespace, ledger.spec.bookie_ref.name))
    if found is None:
        return itself
    pool = Bookie.model_validate(found)
    ours = members(pool.spec.metadata.endpoints, pool.meta.namespace)
    pools = pools_on(ours, await memory.all(kube, "Bookie"))
    return itself | _of_pools(await memory.all(kube, "ManagedLedger"), pools)


def _of_pools(ledgers: Iterable[Manifest], pools: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {
        (item["metadata"]["namespace"], item["metadata"]["name"])
        for item in ledgers
        if (item["metadata"]["namespace"], item["spec"]["bookieRef"]["name"]) in pools
    }


def _who(ledger: ManagedLedger) -> tuple[str, str]:
    return ledger.meta.namespace, ledger.meta.name
