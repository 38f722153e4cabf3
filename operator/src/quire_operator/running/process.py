"""`quire-operator run`: waits for the lease, then watches resources and their children, and has passes over them.

What changes wakes what it concerns; a pass says itself when it wants to be back.
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
    """Of pods whose resource names none."""

    bookie: str
    broker: str
    jobs: str | None = None
    """None: each resource with jobs names one."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """How the process runs."""

    kubeconfig: str | None
    """None: the account of the pod."""
    namespace: str
    """Where the lease is."""
    identity: str
    """What the lease names."""
    images: Images
    watch_namespace: str | None = None
    """Only resources in it; None: everywhere."""
    metrics_port: int = 8080
    """HTTP port of probes and metrics; 0: any that is free."""
    http: HttpBounds = field(default_factory=HttpBounds)
    generated_tls: bool = False
    """Resources without `tls` get certificates that are made here."""
    any_template: bool = False
    """Pod templates may ask for rights over the node, and for other accounts."""
    etcd: str | None = None
    """Name of the chart's etcd, whose certificates are made here; None: it has none."""
    etcd_client_namespaces: tuple[str, ...] = ()
    """Where else its clients' Secret is."""


async def run_operator(settings: OperatorSettings) -> None:
    """Until SIGINT or SIGTERM. OperatorError: there is no cluster, or the lease was lost."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with await Kube.open(settings.kubeconfig) as kube, aiohttp.ClientSession() as session:
        leadership = Leadership(kube, settings.namespace, settings.identity, time.time)
        kube.before_writing = leadership.check
        try:
            await _until(ended, leadership, kube, session, settings)
        finally:
            # A lease that is not given back ends by itself.
            with contextlib.suppress(KubeError, UnreachableError):
                await leadership.give_back()


async def _until(
    ended: asyncio.Event,
    leadership: Leadership,
    kube: Kube,
    session: aiohttp.ClientSession,
    settings: OperatorSettings,
) -> None:
    """All tasks, until the event or the first failure."""
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
                # Passes take the resources from what the watches told.
                listed = tasks.create_task(all_listed(feeds[: len(KINDS)]), name="listed")
                running.append(listed)
                await asyncio.wait({listed, waiting}, return_when=asyncio.FIRST_COMPLETED)
                passes = [queue.run(measurements.measured(work)) for _ in range(PASSES_AT_ONCE)]
                running += [tasks.create_task(each, name=f"passes-{n}") for n, each in enumerate(passes)]
            await waiting
            for task in (*running, held):
                task.cancel()
    except ExceptionGroup as failures:
        # Not `except*`: what is raised in there comes out as a group again, and nobody knows it.
        ours, others = failures.split(OperatorError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from failures


def _work_of(
    kube: Kube, session: aiohttp.ClientSession, settings: OperatorSettings, memory: Memory, secrets: CertificateSecrets
) -> Callable[[Key], Awaitable[float | None]]:
    """Make the function that takes one resource through a pass. It returns the seconds until the next; None: gone."""
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
    """The first error of a group, which may have groups in it."""
    found: OperatorError | ExceptionGroup[OperatorError] = failures
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found


async def all_listed(feeds: Iterable[Feed]) -> None:
    """Once every one has told of what there is."""
    for feed in feeds:
        await feed.listed.wait()


async def measure(resources: Resources, measurements: Measurements) -> None:
    """What the resources say of themselves as readings, until cancelled."""
    while True:
        for kind in KINDS:
            measurements.note_resources(kind, resources.all(kind))
        await asyncio.sleep(MEASURE_PAUSE_S)
