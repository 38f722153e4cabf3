"""Keeps the Secrets with the password of a namespace's ledgers: made once, never changed, gone with their resource.

An existing Secret of that name is used as it is, also where a user made it.
"""

import base64
import os
from collections.abc import Callable

from quire_operator.api import API_VERSION
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.naming import FIELD_MANAGER, ledger_password_name
from quire_operator.builders.settings import LEDGER_PASSWORD_KEY
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection, object_path

KEPT_S = 60.0
"""A Secret that was whole is looked at again after so long."""
_BYTES = 24


class LedgerPasswords:
    """The Secrets of one operator process."""

    def __init__(self, kube: Kube, draw: Callable[[int], bytes] = os.urandom) -> None:
        """`draw`: makes as many random bytes as it is asked for."""
        self._kube = kube
        self._draw = draw
        self._whole: dict[tuple[str, str, str], float] = {}
        """By namespace, name and owner: when it was found."""

    async def ensure(self, resource: ManagedLedger, now_s: float) -> str | None:
        """See that the Secret is there, unless the resource names one or goes. Return the fault that a user must fix.

        KubeError (ConflictError: another made it in between).
        """
        meta = resource.meta
        key = (meta.namespace, name := ledger_password_name(meta.name), meta.uid)
        if resource.spec.brokers.ledger_password_secret is not None or meta.deletion_timestamp is not None:
            self._whole.pop(key, None)
            return None
        if 0 <= now_s - self._whole.get(key, -KEPT_S) < KEPT_S:
            return None
        there = await self._kube.get(object_path("v1", "Secret", meta.namespace, name))
        if there is None:
            await self._make(resource, name)
        elif not (there.get("data") or {}).get(LEDGER_PASSWORD_KEY):
            return (
                f"brokers: the Secret {name} has no {LEDGER_PASSWORD_KEY}: add it, or delete the Secret, and the "
                "operator makes another"
            )
        self._whole[key] = now_s
        return None

    async def _make(self, resource: ManagedLedger, name: str) -> None:
        meta = resource.meta
        owner = {"apiVersion": API_VERSION, "kind": "ManagedLedger", "name": meta.name, "uid": meta.uid}
        metadata = {
            "name": name,
            "namespace": meta.namespace,
            "labels": {"app.kubernetes.io/part-of": "quire", "app.kubernetes.io/managed-by": FIELD_MANAGER},
            "ownerReferences": [owner | {"controller": True}],
        }
        password = base64.b64encode(self._draw(_BYTES).hex().encode()).decode()
        data = {LEDGER_PASSWORD_KEY: password}
        made = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
        await self._kube.create(collection("v1", "Secret", meta.namespace), made)
