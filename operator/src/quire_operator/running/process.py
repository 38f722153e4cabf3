"""`quire-operator run`: waits for the lease, then runs kopf and reconciles what its watches report.

kopf starts only once the lease is held, and a lost lease ends it together with all other tasks.
"""

import asyncio
import contextlib
import logging
import signal
import time
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import kopf

from quire_operator.api import API_VERSION
from quire_operator.cluster.kube import Kube
from quire_operator.errors import KubeError, OperatorError, UnreachableError
from quire_operator.monitoring.bounded import HttpBounds
from quire_operator.monitoring.web import OperatorHealth, serving
from quire_operator.running.handlers import RESOURCES, register, start
from quire_operator.running.lease import Leadership
from quire_operator.running.passes import Defaults
from quire_operator.running.reconciling import EtcdCertificates, Reconciling

_log = logging.getLogger("quire.operator")
NOT_SERVED_PAUSE_S = 5.0
ENDED_PAUSE_S = 5.0


class WatchesEndedError(OperatorError):
    """kopf ended because of an error that its own retries did not overcome: the process begins again."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of the process."""

    kubeconfig: str | None
    """None to use the ServiceAccount of the pod."""
    namespace: str
    """Namespace of the lease."""
    identity: str
    """Name of this process in the lease."""
    defaults: Defaults
    watch_namespace: str | None = None
    """Namespace of the resources; None for all."""
    metrics_port: int = 8080
    """HTTP port of probes and metrics; 0 for any free one."""
    http: HttpBounds = field(default_factory=HttpBounds)
    etcd: EtcdCertificates | None = None


async def run_operator(settings: OperatorSettings) -> None:
    """Run until SIGINT or SIGTERM. OperatorError if there is no cluster, or the lease was lost."""
    ended = asyncio.Event()
    _end_on_signals(ended)
    async with await Kube.open(settings.kubeconfig) as kube, aiohttp.ClientSession() as session:
        leadership = Leadership(kube, settings.namespace, settings.identity, time.time)
        kube.before_writing = leadership.check
        try:
            await _until(ended, leadership, kube, session, settings)
        finally:
            # A lease that is not released expires by itself.
            with contextlib.suppress(KubeError, UnreachableError):
                await leadership.give_back()


def _end_on_signals(ended: asyncio.Event) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)


async def _until(
    ended: asyncio.Event,
    leadership: Leadership,
    kube: Kube,
    session: aiohttp.ClientSession,
    settings: OperatorSettings,
) -> None:
    """Run all tasks until the event is set or the first one fails."""
    reconciling = Reconciling(kube, session, settings.defaults, settings.etcd)
    health = OperatorHealth(leadership, reconciling.measurements, reconciling.queue.__len__, time.time)
    stop = asyncio.Event()
    try:
        async with serving(health, settings.metrics_port, bounds=settings.http), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(leadership.run(), name="lease")]
            waiting = tasks.create_task(ended.wait(), name="signal")
            held = tasks.create_task(leadership.held.wait(), name="held")
            await asyncio.wait({held, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.is_set():
                # Before kopf: at its end it cancels every task that was created while it ran.
                running += [tasks.create_task(each, name=name) for name, each in reconciling.tasks()]
                tasks.create_task(_watch(kube, settings, reconciling.memo(), stop, ended), name="kopf")
            await waiting
            for task in (*running, held):
                task.cancel()
            stop.set()
    except ExceptionGroup as failures:
        # Not `except*`, which would wrap the raised error in a group again.
        ours, others = failures.split(OperatorError)
        if ours is None or others is not None:
            raise
        raise _first(ours) from failures


async def _watch(
    kube: Kube, settings: OperatorSettings, memo: kopf.Memo, stop: asyncio.Event, ended: asyncio.Event
) -> None:
    """Run kopf until `stop` is set; a signal that kopf takes sets `ended`. Raises WatchesEndedError."""
    if not await _served(kube, stop):
        return
    ready = asyncio.Event()
    registry = kopf.OperatorRegistry()
    kopf.on.startup(registry=registry)(start)
    register(registry, settings.kubeconfig)
    namespaces = [] if settings.watch_namespace is None else [settings.watch_namespace]
    taking_signals = asyncio.create_task(_take_signals_back(ready, ended))
    try:
        await kopf.operator(
            registry=registry,
            memo=memo,
            # By default kopf derives it from the name of the account, which the user of an image need not have.
            identity=cast(Any, settings.identity),
            clusterwide=not namespaces,
            namespaces=namespaces,
            standalone=True,
            ready_flag=ready,
            stop_flag=stop,
        )
    except Exception as error:  # the root of a task: kopf's own errors share no class
        why = str(error) or type(error).__name__
        _log.error("kopf ended: %s; beginning again in %.0f s", why, ENDED_PAUSE_S)
        await asyncio.sleep(ENDED_PAUSE_S)
        raise WatchesEndedError(f"the watches ended: {why}") from error
    finally:
        taking_signals.cancel()
    ended.set()


async def _take_signals_back(ready: asyncio.Event, ended: asyncio.Event) -> None:
    """Handle signals again as soon as kopf, which handles them while it starts, has started.

    Our own order of a stop is the faster one: kopf waits seconds for tasks that are not its own.
    """
    await ready.wait()
    _end_on_signals(ended)


async def _served(kube: Kube, stop: asyncio.Event) -> bool:
    """Wait until the CRDs are installed, as kopf finds kinds only at its start. Returns False if stopped before."""
    while not stop.is_set():
        try:
            found = await kube.get(f"/apis/{API_VERSION}")
            names = {one["name"] for one in (found or {}).get("resources", ())}
            lacking = sorted(set(RESOURCES.values()) - names)
            if not lacking:
                return True
            _log.warning("the API server does not serve %s of %s: install the CRDs", ", ".join(lacking), API_VERSION)
        except OperatorError as error:
            _log.warning("could not find the kinds that the API server serves: %s", error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NOT_SERVED_PAUSE_S):
                await stop.wait()
    return False


def _first(failures: ExceptionGroup[OperatorError]) -> OperatorError:
    """Return the first error of a group, which may be nested."""
    found: OperatorError | ExceptionGroup[OperatorError] = failures
    while isinstance(found, ExceptionGroup):
        found = found.exceptions[0]
    return found
