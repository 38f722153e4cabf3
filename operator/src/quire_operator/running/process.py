"""`quire-operator run`: waits for the lease, then watches resources and their children, and reconciles them.

A change enqueues the affected resources; each reconciliation returns when to run again.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import aiohttp

from quire_operator.certificates.keeping import CertificateSecrets
from quire_operator.certificates.users import keep_etcd
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.ledger_passwords import LedgerPasswords
from quire_operator.cluster.memory import Memory, Resources
from quire_operator.cluster.watching import Feed
from quire_operator.errors import KubeError, OperatorError, UnreachableError
from quire_operator.monitoring.bounded import HttpBounds
from quire_operator.monitoring.measurements import Measurements
from quire_operator.monitoring.web import OperatorHealth, serving
from quire_operator.reconcile import reconcile_bookie, reconcile_managed_ledger
from quire_operator.running.lease import Leadership
from quire_operator.running.wakes import KINDS, Wakes
from quire_operator.running.work_queue import Key, WorkQueue

_log = logging.getLogger("quire.operator")
MEASURE_PAUSE_S = 5.0
PASSES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Images:
    """Images of pods whose resource names none."""

    bookie: str
    broker: str
    jobs: str | None = None
    """None if each resource with jobs must name one."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of the process."""

    kubeconfig: str | None
    """None to use the ServiceAccount of the pod."""
    namespace: str
    """Namespace of the lease."""
    identity: str
    """Name of this process in the lease."""
    images: Images
    watch_namespace: str | None = None
    """Namespace of the resources; None for all."""
    metrics_port: int = 8080
    """HTTP port of probes and metrics; 0 for any free one."""
    http: HttpBounds = field(default_factory=HttpBounds)
    generated_tls: bool = False
    """Generate certificates for resources without `tls`."""
    any_template: bool = False
    """Pod templates may request privileges on the node and other ServiceAccounts."""
    etcd: str | None = None
    """Name of the chart's etcd whose certificates are maintained; None for none."""
    etcd_client_namespaces: tuple[str, ...] = ()
    """Further namespaces that get the Secret of etcd's clients."""


async def run_operator(settings: OperatorSettings) -> None:
    """Run until SIGINT or SIGTERM. OperatorError if there is no cluster, or the lease was lost."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with await Kube.open(settings.kubeconfig) as kube, aiohttp.ClientSession() as session:
        leadership = Leadership(kube, settings.namespace, settings.identity, time.time)
        kube.before_writing = leadership.check
        try:
            await _until(ended, leadership, kube, session, settings)
        finally:
            # A lease that is not released expires by itself.
            with contextlib.suppress(KubeError, UnreachableError):
                await leadership.give_back()


async def _until(
    ended: asyncio.Event,
    leadership: Leadership,
    kube: Kube,
    session: aiohttp.ClientSession,
    settings: OperatorSettings,
) -> None:
    """Run all tasks until the event is set or the first one fails."""
    queue, measurements, resources = WorkQueue(), Measurements(), Resources()
    memory = Memory(Applied(watched=True), resources)
    feeds = Wakes(queue, memory, resources).feeds(kube, settings.watch_namespace)
    health = OperatorHealth(leadership, measurements, queue.__len__, time.time)

    secrets = CertificateSecrets(kube)
    work = _work_of(kube, session, settings, memory, secrets)

    try:
        async with serving(health, settings.metrics_port, bounds=settings.http), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(leadership.run(), name="lease")]
            waiting = tasks.create_task(ended.wait(), name="signal")
            held = tasks.create_task(leadership.held.wait(), name="held")
            await asyncio.wait({held, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.is_set():
                running += [tasks.create_task(feed.run(), name=f"watch {feed.path}") for feed in feeds]
                running.append(tasks.create_task(measure(resources, measurements), name="readings"))
                if settings.etcd is not None:
                    places = (settings.etcd, settings.namespace, settings.etcd_client_namespaces)
                    running.append(tasks.create_task(keep_etcd(secrets, *places, time.time), name="etcd-certificates"))
                # Reconciliations use the resources that the watches reported.
                listed = tasks.create_task(all_listed(feeds[: len(KINDS)]), name="listed")
                running.append(listed)
                await asyncio.wait({listed, waiting}, return_when=asyncio.FIRST_COMPLETED)
                passes = [queue.run(measurements.measured(work)) for _ in range(PASSES_AT_ONCE)]
                running += [tasks.create_task(each, name=f"passes-{n}") for n, each in enumerate(passes)]
            await waiting
            for task in (*running, held):
                task.cancel()
    except ExceptionGroup as failures:
        # Not `except*`, which would wrap the raised error in a group again.
        ours, others = failures.split(OperatorError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from failures


def _work_of(
    kube: Kube, session: aiohttp.ClientSession, settings: OperatorSettings, memory: Memory, secrets: CertificateSecrets
) -> Callable[[Key], Awaitable[float | None]]:
    """Return the function that reconciles one resource. It returns the seconds until the next time, or None if gone."""
    bookies, brokers = BookieHttp(session), BrokerRest(session)
    certificates = secrets if settings.generated_tls else None
    passwords = LedgerPasswords(kube)

    async def work(key: Key) -> float | None:
        where, now_s = (key.namespace, key.name), time.time()
        if key.kind == "ManagedLedger":
            return await reconcile_managed_ledger(
                kube,
                brokers,
                *where,
                default_image=settings.images.broker,
                jobs_image=settings.images.jobs,
                now_s=now_s,
                memory=memory,
                certificates=certificates,
                passwords=passwords,
                any_template=settings.any_template,
            )
        return await reconcile_bookie(
            kube,
            bookies,
            *where,
            default_image=settings.images.bookie,
            now_s=now_s,
            memory=memory,
            certificates=certificates,
            any_template=settings.any_template,
        )

    return work


def _first(failures: ExceptionGroup[OperatorError]) -> OperatorError:
    """Return the first error of a group, which may be nested."""
    found: OperatorError | ExceptionGroup[OperatorError] = failures
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


async def all_listed(feeds: Iterable[Feed]) -> None:
    """Wait until every feed has reported all existing objects."""
    for feed in feeds:
        await feed.listed.wait()


async def measure(resources: Resources, measurements: Measurements) -> None:
    """Update the measurements of the resources periodically, until cancelled."""
    while True:
        for kind in KINDS:
            measurements.note_resources(kind, resources.all(kind))
        await asyncio.sleep(MEASURE_PAUSE_S)
