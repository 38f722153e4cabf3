"""Minimal valid resources of `quire.dev/v1alpha1`, and a function to change fields of one."""

import copy
from typing import Any

BOOKIE: dict[str, Any] = {
    "apiVersion": "quire.dev/v1alpha1",
    "kind": "Bookie",
    "metadata": {"name": "pool"},
    "spec": {
        "metadata": {"endpoints": ["etcd-0.etcd:2379", "etcd-1.etcd:2379"]},
        "storage": {"journal": {"size": "10Gi"}, "ledgers": {"size": "100Gi"}},
    },
}
MANAGED_LEDGER: dict[str, Any] = {
    "apiVersion": "quire.dev/v1alpha1",
    "kind": "ManagedLedger",
    "metadata": {"name": "orders"},
    "spec": {"bookieRef": {"name": "pool"}, "namespace": "shop/orders"},
}
ABSENT = object()
"""A value that removes the field."""


def changed(manifest: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a copy with values at dotted paths, e.g. `{"spec.storage.journal.size": "1Gi"}`; parents are created."""
    found = copy.deepcopy(manifest)
    for path, value in changes.items():
        *parents, last = path.split(".")
        node = found
        for name in parents:
            node = node.setdefault(name, {})
        if value is ABSENT:
            node.pop(last, None)
        else:
            node[last] = copy.deepcopy(value)
    return found


def bookie(**spec: Any) -> dict[str, Any]:
    """Return a valid Bookie with some fields of the spec replaced; names as in the manifest."""
    return changed(BOOKIE, {f"spec.{name}": value for name, value in spec.items()})


def managed_ledger(**spec: Any) -> dict[str, Any]:
    """Return a valid ManagedLedger with some fields of the spec replaced; names as in the manifest."""
    return changed(MANAGED_LEDGER, {f"spec.{name}": value for name, value in spec.items()})


def of_orders(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    """Return a resource that declares an object of the brokers of `orders`."""
    manifest = {"apiVersion": "quire.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
    return {**manifest, "spec": {"managedLedgerRef": {"name": "orders"}, **spec}}


def declared(kind: str, name: str, *, generation: int = 1, managed: bool = True, **spec: Any) -> dict[str, Any]:
    """Return a resource that declares an object of the brokers of `orders`, as the API server has it."""
    metadata = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "generation": generation,
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["quire.dev/declared"] if managed else [],
    }
    return {**of_orders(kind, name, **spec), "metadata": metadata, "status": {"managed": managed}}
