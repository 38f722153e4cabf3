"""What runs while the lease is held: workers that reconcile queued resources, measurements, etcd's certificates.

A new instance for each time that the lease is acquired: nothing that was observed before may be acted on.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass

import aiohttp
import kopf

from quire_operator.certificates.keeping import CertificateSecrets
from quire_operator.certificates.users import keep_etcd
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.monitoring.measurements import Measurements
from quire_operator.running.handlers import RESOURCES
from quire_operator.running.passes import Defaults, pass_of, work_of
from quire_operator.running.wakes import Wakes
from quire_operator.running.work_queue import WorkQueue

MEASURE_PAUSE_S = 5.0
PASSES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class EtcdCertificates:
    """The chart's etcd whose certificates are maintained."""

    name: str
    namespace: str
    client_namespaces: tuple[str, ...] = ()
    """Further namespaces that get the Secret of its clients."""


class Reconciling:
    """Owns the queue and the memory. kopf's handlers fill the queue, `tasks` empties it."""

    def __init__(
        self, kube: Kube, session: aiohttp.ClientSession, defaults: Defaults, etcd: EtcdCertificates | None = None
    ) -> None:
        self.queue, self.measurements, self._resources = WorkQueue(), Measurements(), Resources()
        self._memory = Memory(Applied(watched=True), self._resources)
        self._secrets = CertificateSecrets(kube)
        self._etcd = etcd
        one_pass = pass_of(kube, session, defaults, self._memory, self._secrets)
        self._work = work_of(self.measurements.measured(one_pass), self._resources)

    def memo(self) -> kopf.Memo:
        """Return what kopf passes to the handlers."""
        return kopf.Memo(wakes=Wakes(self.queue, self._memory, self._resources), resources=self._resources)

    def tasks(self) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
        """Yield the workers and the other tasks, with a name each; all run until cancelled."""
        for number in range(PASSES_AT_ONCE):
            yield f"passes-{number}", self.queue.run(self._work)
        yield "readings", self._measure()
        if self._etcd is not None:
            places = (self._etcd.name, self._etcd.namespace, self._etcd.client_namespaces)
            yield "etcd-certificates", keep_etcd(self._secrets, *places, time.time)

    async def _measure(self) -> None:
        """Update the measurements of the resources periodically."""
        while True:
            for kind in RESOURCES:
                self.measurements.note_resources(kind, self._resources.all(kind))
            await asyncio.sleep(MEASURE_PAUSE_S)
