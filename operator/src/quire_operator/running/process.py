"""`quire-operator run`: waits for the lease, then lists what there is again and again and has passes over it.

Listing wakes only what is new or has changed; a pass says itself when it wants to be back.
"""

import asyncio
import contextlib
import logging
import signal
import time
from dataclasses import dataclass

import aiohttp

from quire_operator.api import API_VERSION
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection
from quire_operator.errors import KubeError, OperatorError, UnreachableError
from quire_operator.reconcile import reconcile_bookie
from quire_operator.running.lease import Leadership
from quire_operator.running.work_queue import Key, WorkQueue

_log = logging.getLogger("quire.operator")
LIST_PAUSE_S = 2.0
PASSES_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """How the process runs."""

    kubeconfig: str | None
    """None: the account of the pod."""
    namespace: str
    """Where the lease is."""
    identity: str
    """What the lease names."""
    default_image: str
    watch_namespace: str | None = None
    """Only resources in it; None: everywhere."""


async def run_operator(settings: OperatorSettings) -> None:
    """Until SIGINT or SIGTERM. OperatorError: there is no cluster, or the lease was lost."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with await Kube.open(settings.kubeconfig) as kube, aiohttp.ClientSession() as session:
        leadership = Leadership(kube, settings.namespace, settings.identity, time.time)
        try:
            await _until(ended, leadership, kube, BookieHttp(session), settings)
        finally:
            # A lease that is not given back ends by itself.
            with contextlib.suppress(KubeError, UnreachableError):
                await leadership.give_back()


async def _until(
    ended: asyncio.Event, leadership: Leadership, kube: Kube, http: BookieHttp, settings: OperatorSettings
) -> None:
    """All tasks, until the event or the first failure."""
    queue, applied = WorkQueue(), Applied()

    async def work(key: Key) -> float | None:
        return await reconcile_bookie(
            *(kube, http, key.namespace, key.name),
            default_image=settings.default_image,
            now_s=time.time(),
            applied=applied,
        )

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(leadership.run(), name="lease")]
            waiting = tasks.create_task(ended.wait(), name="signal")
            held = tasks.create_task(leadership.held.wait(), name="held")
            await asyncio.wait({held, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.is_set():
                running.append(tasks.create_task(wake(kube, queue, settings.watch_namespace), name="list"))
                running += [tasks.create_task(queue.run(work), name=f"passes-{n}") for n in range(PASSES_AT_ONCE)]
            await waiting
            for task in (*running, held):
                task.cancel()
    except* OperatorError as failures:
        raise failures.exceptions[0] from failures


async def wake(kube: Kube, queue: WorkQueue, namespace: str | None) -> None:
    """Enqueue what is new or has changed since the last list, until cancelled."""
    known: dict[Key, str] = {}
    while True:
        try:
            found = await kube.list(collection(API_VERSION, "Bookie", namespace))
        except OperatorError as error:
            _log.warning("resources cannot be listed: %s", error)
        else:
            seen = {
                Key("Bookie", item["metadata"]["namespace"], item["metadata"]["name"]): str(
                    item["metadata"].get("generation", 0)
                )
                + item["metadata"].get("deletionTimestamp", "")
                for item in found
            }
            for key in sorted(key for key, version in seen.items() if known.get(key) != version):
                await queue.add(key)
            known = seen
        await asyncio.sleep(LIST_PAUSE_S)
