"""Elects the one of several operators that acts: the holder of a Lease. Decisions are pure; `Leadership` performs them.

Clocks of different machines are never compared: a candidate takes the lease when it has not *changed* for its whole
duration by the candidate's own clock. A holder that cannot renew it stops well before that, so two never act at once.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from quire_operator.builders import Manifest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection, object_path
from quire_operator.errors import KubeError, OperatorError, UnreachableError

_log = logging.getLogger("quire.operator")
NAME = "quire-operator"
DURATION_S = 15.0
RENEW_DEADLINE_S = 8.0
PAUSE_S = 2.0
_VERSION = "coordination.k8s.io/v1"
assert RENEW_DEADLINE_S + PAUSE_S < DURATION_S


class LeaseLostError(OperatorError):
    """The lease could not be renewed in time: this process must stop acting."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A lease as observed by a candidate over time."""

    version: str
    """resourceVersion: changes with each renewal."""
    since_s: float
    """When this version was first observed, by the candidate's own clock."""
    duration_s: float
    holder: str


def watched(before: Watched | None, lease: Manifest, now_s: float) -> Watched:
    """Return the observation after the lease was read again."""
    version, spec = lease["metadata"]["resourceVersion"], lease.get("spec", {})
    since_s = before.since_s if before is not None and before.version == version else now_s
    return Watched(
        version, since_s, float(spec.get("leaseDurationSeconds") or DURATION_S), spec.get("holderIdentity") or ""
    )


def may_take(lease: Watched, me: str, now_s: float) -> bool:
    """Return whether the lease is ours, was released, or was not renewed for its whole duration."""
    return lease.holder in ("", me) or now_s - lease.since_s > lease.duration_s


class Leadership:
    """Owns the lease. `held` is set while this process may act; `run` renews it, or raises LeaseLostError."""

    def __init__(self, kube: Kube, namespace: str, me: str, wall_s: Callable[[], float]) -> None:
        """Create it without a lease. `wall_s`: seconds since the epoch, only informational in the lease."""
        self.held = asyncio.Event()
        self.turned_s: float | None = None
        """Start of the last iteration of `run`, in the event loop's time; for probes."""
        self.answered_s: float | None = None
        """Last response of the API server."""
        self._kube = kube
        self._namespace = namespace
        self._me = me
        self._wall_s = wall_s
        self._watched: Watched | None = None
        self._renewed_s = 0.0

    def check(self) -> None:
        """Raise LeaseLostError if a held lease was not renewed in time.

        Also called before each write: a process that was suspended within a reconciliation continues there, before
        `run` can detect the loss.
        """
        age_s = self._age_s()
        if self.held.is_set() and age_s >= RENEW_DEADLINE_S:
            raise LeaseLostError(f"the lease was not renewed for {age_s:.0f} s")

    def _age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._renewed_s

    async def run(self) -> None:
        """Take and renew the lease until cancelled. Raises LeaseLostError."""
        loop = asyncio.get_running_loop()
        self._renewed_s = loop.time()
        while True:
            began_s = self.turned_s = loop.time()
            try:
                # For a held lease only the remaining time, so that a hanging request ends before the deadline.
                left_s = self._renewed_s + RENEW_DEADLINE_S - began_s if self.held.is_set() else RENEW_DEADLINE_S
                async with asyncio.timeout(max(0.0, left_s)):
                    taken = await self._try()
                self.answered_s = loop.time()
            except (KubeError, UnreachableError, TimeoutError) as error:
                _log.warning("could not renew the lease: %s", error or "no response in time")
                taken = False
            if taken:
                self._renewed_s = began_s
                if not self.held.is_set():
                    _log.info("acquired the lease %s/%s: reconciliation begins", self._namespace, NAME)
                self.held.set()
            else:
                self.check()
            await asyncio.sleep(PAUSE_S)

    async def give_back(self) -> None:
        """Release the lease, so that the next holder need not wait. Raises KubeError, UnreachableError."""
        held, late = self.held.is_set(), self._age_s() >= RENEW_DEADLINE_S
        self.held.clear()
        # A lost lease expires by itself; by then the last writes have arrived.
        if held and not late:
            lease = await self._kube.get(self._path())
            if lease is not None and lease.get("spec", {}).get("holderIdentity") == self._me:
                await self._kube.replace(self._path(), self._held_by(lease, ""))

    async def _try(self) -> bool:
        """Take or renew the lease. Return whether it is ours now."""
        lease = await self._kube.get(self._path())
        if lease is None:
            empty = {"metadata": {"name": NAME, "namespace": self._namespace}}
            await self._kube.create(collection(_VERSION, "Lease", self._namespace), self._held_by(empty, self._me))
            return True
        now_s = asyncio.get_running_loop().time()
        self._watched = watched(self._watched, lease, now_s)
        if not may_take(self._watched, self._me, now_s):
            return False
        # Under the resourceVersion that was read, so that one of two candidates gets a conflict.
        await self._kube.replace(self._path(), self._held_by(lease, self._me))
        return True

    def _path(self) -> str:
        return object_path(_VERSION, "Lease", self._namespace, NAME)

    def _held_by(self, lease: Manifest, holder: str) -> Manifest:
        """Return the lease with another holder. The time makes each renewal a change, which gives it a new version."""
        spec = lease.get("spec", {})
        now = datetime.fromtimestamp(self._wall_s(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        changed = {
            "holderIdentity": holder,
            "leaseDurationSeconds": int(DURATION_S),
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + int(spec.get("holderIdentity") != holder),
        }
        return {**lease, "apiVersion": _VERSION, "kind": "Lease", "spec": {**spec, **changed}}
