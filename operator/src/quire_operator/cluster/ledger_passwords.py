"""Owns the Secrets with the ledger password of a namespace: created once, never changed, deleted with the resource.

An existing Secret of that name is used unchanged, including one that a user created.
"""

import os
from collections.abc import Callable

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.naming import ledger_password_name
from quire_operator.builders.secrets import owned_secret
from quire_operator.builders.settings import LEDGER_PASSWORD_KEY
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection, object_path

KEPT_S = 60.0
"""Time after which a complete Secret is checked again."""
_BYTES = 24


class LedgerPasswords:
    """Creates and checks the Secrets; one instance per operator process."""

    def __init__(self, kube: Kube, draw: Callable[[int], bytes] = os.urandom) -> None:
        """Use `draw` as the source of random bytes; it takes their number."""
        self._kube = kube
        self._draw = draw
        self._whole: dict[tuple[str, str, str], float] = {}
        """Time of the last successful check, by namespace, name and owner."""

    async def ensure(self, resource: ManagedLedger, now_s: float) -> str | None:
        """Ensure that the Secret exists, unless the resource names one or is being deleted.

        Returns an error that a user must fix, or None. Raises KubeError (ConflictError if it was created meanwhile).
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
                f"brokers: the Secret {name} has no key {LEDGER_PASSWORD_KEY}: add it, or delete the Secret, and the "
                "operator will create a new one"
            )
        self._whole[key] = now_s
        return None

    async def _make(self, resource: ManagedLedger, name: str) -> None:
        made = owned_secret("ManagedLedger", resource.meta, name, {LEDGER_PASSWORD_KEY: self._draw(_BYTES).hex()})
        await self._kube.create(collection("v1", "Secret", resource.meta.namespace), made)
