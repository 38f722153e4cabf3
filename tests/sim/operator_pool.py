"""A pool of simulated bookies under the production operator: kubelets, the bookies' HTTP, and the operator's processes.

The operator runs `reconcile_bookie` itself, on a simulated API server; its HTTP requests to bookies are answered from
the same metadata and the same running bookies, by the rules of the admin API.
"""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from quire_bookie.errors import QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.cookies import CookieInUseError, Cookies
from quire_bookie.metadata.drains import Drains, Wish
from quire_bookie.metadata.election import current_leader
from quire_bookie.metadata.recovery_controls import RecoveryControls
from quire_bookie.metadata.registration import bookie_of_path
from quire_bookie.metadata.service_info import decode_service_info
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.metadata.unrecoverable import UnrecoverableLedgers
from quire_bookie.model import BookieId
from quire_bookie.server.process import BookieState
from quire_bookie.settings.rack import RackSettings
from quire_operator.api.bookie import Bookie
from quire_operator.builders.bookie import bookie_host
from quire_operator.builders.naming import REPLACE_ANNOTATION, ZONE_ANNOTATION
from quire_operator.cluster.bookie_http import Response
from quire_operator.cluster.memory import Memory
from quire_operator.cluster.paths import bookie_path, managed_ledger_path, object_path
from quire_operator.cluster.tls_trust import TlsTrust
from quire_operator.errors import UnreachableError
from quire_operator.plan.observation import ObservedBookie, ObservedCluster, ObservedDrain
from quire_operator.plan.operations import rfc3339
from quire_operator.reconcile import reconcile_bookie
from tests.sim.autorecovery_scenario import Cluster
from tests.sim.disk import SimDisk
from tests.sim.history import HistoryError
from tests.sim.metadata import SimMetadataStore
from tests.sim.operator_api import NAMESPACE, Controllers, SimKube
from tests.sim.operator_checks import Promises
from tests.sim.operator_process import Link, Operators
from tests.sim.world import SimBookie, World
from tests.support.kube_resources import bookie, managed_ledger

NAME = "pool"
POOL = bookie_path(NAMESPACE, NAME)
GIB = 1 << 30
ENSEMBLE = 3


@dataclass
class SimHttp:
    """Replaces `BookieHttp`."""

    world: World
    cluster_of: Cluster

    @asynccontextmanager
    async def _asked(self, host: str) -> AsyncIterator[SimMetadataStore]:
        """Enter if a process responds at the host; errors of the metadata store become UnreachableError."""
        await asyncio.sleep(self.world.chance.uniform(0.0, 0.05))
        place = self.world.bookies.get(host)
        there = [one for one in self.cluster_of.recoverers if one.host == host and one.running is not None]
        if (place is None or place.running is None) and not there:
            raise UnreachableError(f"{host} does not respond")
        try:
            yield SimMetadataStore(self.world.metadata)
        except QuireError as error:
            raise UnreachableError(f"{host}: {error}") from error

    def set_trust(
        self, pool: str, hosts: Collection[str], trusts: Mapping[str, TlsTrust], token: str | None = None
    ) -> None:
        """Check that no trust and no token are set: the simulation serves without TLS and authentication."""
        assert not trusts and token is None, f"{pool}: {hosts}"

    async def ask(self, host: str, path: str, method: str = "GET", body: object = None) -> Response:
        raise UnreachableError(f"{method} {path} is not simulated")

    async def bookie(self, host: str, bookie_id: str) -> ObservedBookie:
        async with self._asked(host):
            place = self.world.bookies.get(host)
            if place is None or place.running is None:
                raise UnreachableError(f"{host} is not a bookie")
            writable = place.running.state is BookieState.WRITABLE
            return ObservedBookie(bookie_id, writable=writable, total_bytes=100 * GIB, free_bytes=60 * GIB)

    async def addresses(self, host: str) -> dict[str, str]:
        async with self._asked(host) as store:
            found: dict[str, str] = {}
            async for page in store.scan(f"{layout.AVAILABLE}/"):
                for node in page:
                    one = bookie_of_path(node.key)
                    endpoint = None if one is None else decode_service_info(node.value, one).bookie_endpoint
                    if one is not None and endpoint is not None:
                        found[one] = f"{endpoint.host}:{endpoint.port}"
            return found

    async def cluster(self, host: str, also: frozenset[str]) -> ObservedCluster:
        async with self._asked(host) as store:
            marks = [mark async for page in UnderReplication(store, self.world.clock).marks() for mark in page]
            lost = [note async for page in UnrecoverableLedgers(store).pages() for note in page]
            accepted = {note.ledger for note in lost if note.accepted_ms is not None}
            writable = set(await store.children(layout.AVAILABLE)) - {"readonly"}
            registered = frozenset(writable | set(await store.children(layout.READ_ONLY)))
            known = [one for one in sorted(also - registered) if await _is_known(store, BookieId(one))]
            return ObservedCluster(
                sum(mark.ledger not in accepted for mark in marks),
                len(lost),
                len(accepted),
                registered | frozenset(known),
                frozenset(writable),
                await current_leader(store),
                await RecoveryControls(store).is_enabled(),
                drains=await _drains(store),
            )

    async def lost_bookie_delay_s(self, host: str) -> int | None:
        async with self._asked(host) as store:
            return await RecoveryControls(store).lost_bookie_delay_s()

    async def set_lost_bookie_delay(self, host: str, delay_s: int) -> None:
        async with self._asked(host) as store:
            await RecoveryControls(store).set_lost_bookie_delay_s(delay_s)

    async def decommission(self, host: str, bookie: str) -> None:
        async with self._asked(host) as store:
            if await _is_known(store, BookieId(bookie)):
                await Drains(store).wish(BookieId(bookie), Wish.DECOMMISSION, self.world.clock.now_ms())

    async def cancel_drain(self, host: str, bookie: str) -> None:
        async with self._asked(host) as store:
            await Drains(store).wish(BookieId(bookie), Wish.CANCEL, self.world.clock.now_ms())


async def _is_known(store: SimMetadataStore, bookie: BookieId) -> bool:
    if await store.get(layout.cookie_path(bookie)) is not None:
        return True
    try:
        await Cookies(store).check_free(bookie)
    except CookieInUseError:
        return True
    return False


async def _drains(store: SimMetadataStore) -> tuple[ObservedDrain, ...]:
    """Return the drains as the admin API shows them; a drain without progress counts as not empty."""
    found = []
    for drain in await Drains(store).read():
        seen = await Drains(store).progress_of(drain.bookie)
        if drain.wish is Wish.CANCEL:
            continue
        if seen is None or seen.at_ms < drain.since_ms:
            found.append(ObservedDrain(drain.bookie, emptied=False, ledgers_left=1, leaving=False))
        else:
            is_empty, at_s = seen.state == "emptied", seen.at_ms / 1000
            progress = (seen.ledgers_left, seen.eta_s, at_s, seen.blocked_by, seen.state in ("leaving", "emptied"))
            found.append(ObservedDrain(drain.bookie, is_empty, *progress))
    return tuple(found)


@dataclass
class Pool:
    """Owns the cluster in Kubernetes: its API server, its kubelets and the operator."""

    world: World
    cluster: Cluster
    kube: SimKube
    controllers: Controllers
    promises: Promises
    operators: Operators
    disks: dict[str, SimDisk] = field(default_factory=dict)
    """Disks by volume."""
    held: set[str] = field(default_factory=set)
    """Hosts on which no process is started."""
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    _busy: set[str] = field(default_factory=set)
    _volumes: dict[str, str] = field(default_factory=dict)
    """The volume of each host's bookie."""

    @classmethod
    def make(cls, world: World, cluster: Cluster, replicas: int, zones: int) -> "Pool":
        """Return a pool with an empty API server, machines, and a Bookie that was just applied."""
        kube = SimKube(random.Random(world.chance.randrange(1 << 30)))

        async def work(link: Link, memory: Memory) -> None:
            await reconcile_bookie(
                link,  # type: ignore[arg-type]
                SimHttp(world, cluster),  # type: ignore[arg-type]
                NAMESPACE,
                NAME,
                default_image="q:1",
                now_s=world.clock.now_ms() / 1000,
                memory=memory,
            )

        promises = Promises(world, lambda: kube.objects.get(POOL, {}).get("status") or {}, ENSEMBLE)
        promises.watch_marks()
        promises.claims = lambda: {one["metadata"]["uid"] for _, one in kube.of_kind("persistentvolumeclaims")}
        operators = Operators(kube, random.Random(world.chance.randrange(1 << 30)), work, world.loop.note)
        pool = cls(world, cluster, kube, Controllers(kube, {}), promises, operators)
        pool.controllers.add_storage_class()
        for number in range(8):
            pool.controllers.add_node(f"n{number}", f"z{number % zones}")
        pool.apply(replicas)
        for host in ("ar1", "ar2"):
            labels = {"app.kubernetes.io/name": "quire-autorecovery", "app.kubernetes.io/instance": NAME}
            status = {"podIP": host, "conditions": [{"type": "Ready", "status": "True"}]}
            made = {"metadata": {"labels": labels}, "spec": {"nodeName": "n0"}, "status": status}
            kube.put(object_path("v1", "Pod", NAMESPACE, host), made)
        kube.shrinking = lambda before, after: promises.shrinking(f"{NAME}-bookie", before, after)
        kube.releasing, kube.recording = promises.releasing, promises.recording
        return pool

    def apply(self, replicas: int, **spec: Any) -> None:
        """Apply the resources, as an administrator does."""
        wanted = bookie(replicas=replicas, autoRecovery={"lostBookieDelay": "20s"}, **spec)
        self.kube.put(POOL, wanted | {"metadata": {"name": NAME}})
        self.kube.put(managed_ledger_path(NAMESPACE, "orders"), managed_ledger(replication={"ensemble": ENSEMBLE}))

    def start(self) -> None:
        """Run Kubernetes and the operator until `stop`."""
        self._tasks = [asyncio.ensure_future(self._kubernetes()), asyncio.ensure_future(self.operators.run())]

    def check(self) -> None:
        """Raise an error of a background task: a violated guarantee, or a failure of the simulation."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def stop(self) -> None:
        """Stop the operator and Kubernetes; raises as `check` does."""
        self.check()
        for task in self._tasks:
            task.cancel()

    # ---- the administrator
    def change(self, **spec: Any) -> None:
        """Change fields of the spec."""
        there = self.kube.objects[POOL]
        metadata = there["metadata"] | {"generation": there["metadata"]["generation"] + 1}
        self.kube.touch(POOL, there | {"spec": there["spec"] | spec, "metadata": metadata})

    def annotate(self, pod: str, key: str) -> None:
        """Annotate a pod, unless it does not exist."""
        path = object_path("v1", "Pod", NAMESPACE, pod)
        there = self.kube.objects.get(path)
        if there is None:
            return
        annotations = there["metadata"].get("annotations", {}) | {key: "yes"}
        self.kube.touch(path, there | {"metadata": there["metadata"] | {"annotations": annotations}})

    def ask_when_there(self, pod: str, key: str) -> None:
        """Annotate a pod as soon as it has been recreated."""
        if object_path("v1", "Pod", NAMESPACE, pod) in self.kube.objects:
            self.annotate(pod, key)
        else:
            self.world.loop.call_later(1.0, self.ask_when_there, pod, key)

    async def delete_and_apply(self, patience_s: float) -> None:
        """Delete the resources, and apply them again under the same names once the pods are gone."""
        spec = self.kube.objects[POOL]["spec"]
        del self.kube.objects[managed_ledger_path(NAMESPACE, "orders")]
        there = self.kube.objects[POOL]
        now = rfc3339(self.world.clock.now_ms() / 1000)
        self.kube.touch(POOL, there | {"metadata": there["metadata"] | {"deletionTimestamp": now}})
        end_s = self.world.loop.time() + patience_s
        while self.kube.objects[POOL]["metadata"].get("finalizers"):
            assert self.world.loop.time() < end_s, f"it is not deleted: {self.status}"
            await asyncio.sleep(1.0)
            self.check()
        del self.kube.objects[POOL]
        self.controllers.collect(f"{NAME}-bookie-")
        while any(one["metadata"]["name"].startswith(f"{NAME}-bookie-") for _, one in self.kube.of_kind("pods")):
            assert self.world.loop.time() < end_s, "its pods do not end"
            await asyncio.sleep(1.0)
            self.check()
        # Volumes never shrink: applying a smaller size than before would not match the existing claims.
        self.apply(spec["replicas"], storage=spec["storage"])

    def change_storage(self, *, size_gib: int, volumes: int) -> None:
        """Change the size or the number of the ledger volumes."""
        self.change(
            storage={"journal": {"size": "10Gi"}, "ledgers": {"size": f"{size_gib}Gi", "volumes": volumes}},
        )

    def lose_node(self, pod: str) -> None:
        """Lose the node of a pod with its volumes; does nothing if the pod is not scheduled yet."""
        there = self.kube.objects.get(object_path("v1", "Pod", NAMESPACE, pod), {"spec": {}})
        node = there["spec"].get("nodeName")
        if node is None:
            return
        for _, one in self.kube.of_kind("pods"):
            host = host_of(one["metadata"]["name"])
            place = self.world.bookies.get(host)
            if one["spec"].get("nodeName") == node and place is not None:
                if place.running is not None:
                    self.promises.lost.add(place.running.bookie_id)
                self.world.crash_bookie(host, "none")
                del self.world.bookies[host]
        for _, claim in self.kube.of_kind("persistentvolumeclaims"):
            if self.controllers.node_of(claim) == node:  # also for a pod that does not run at the moment
                self.promises.lost.add(self.promises.bookies_on.get(claim["spec"]["volumeName"], ""))
        self.controllers.remove_node(node)

    @property
    def status(self) -> dict[str, Any]:
        """The status that the operator wrote."""
        found: dict[str, Any] = self.kube.objects[POOL].get("status") or {}
        return found

    def is_quiet(self) -> bool:
        """Whether the pool matches its spec and is healthy, by its status and by its objects."""
        there, status = self.kube.objects[POOL], self.status
        if status.get("observedGeneration") != there["metadata"]["generation"]:
            return False
        if status.get("operation") or status.get("phase") != "Running":
            return False
        rows, replicas = len(status.get("bookies", ())), there["spec"]["replicas"]
        return rows == replicas == status.get("writable") and self._is_settled(replicas)

    def _is_settled(self, replicas: int) -> bool:
        """Whether every pod has the current template and no request, and its bookie runs."""
        pods = [one for _, one in self.kube.of_kind("pods") if one["metadata"]["name"].startswith(f"{NAME}-bookie-")]
        sets = [one.get("status", {}).get("updateRevision") for _, one in self.kube.of_kind("statefulsets")]
        revisions = {pod["metadata"]["labels"].get("controller-revision-hash") for pod in pods}
        asked = any(REPLACE_ANNOTATION in pod["metadata"].get("annotations", {}) for pod in pods)
        running = [place for place in self.world.bookies.values() if place.running is not None]
        return len(pods) == len(running) == replicas and revisions == set(sets) and not asked

    def check_volumes(self) -> None:
        """Raise HistoryError unless every pod has the requested volumes, and no other pod has any."""
        ledgers = self.kube.objects[POOL]["spec"]["storage"]["ledgers"]
        wanted = {f"ledgers{number}": ledgers["size"] for number in range(ledgers.get("volumes", 1))}
        claims = [one for _, one in self.kube.of_kind("persistentvolumeclaims")]
        for pod in (one["metadata"]["name"] for _, one in self.kube.of_kind("pods")):
            found = {
                claim["metadata"]["name"].partition("-")[0]: claim["status"]["capacity"]["storage"]
                for claim in claims
                if claim["metadata"]["name"].partition("-")[2] == pod
            }
            if pod.startswith(f"{NAME}-bookie-") and not wanted.items() <= found.items():
                raise HistoryError(f"{pod} has {found}, but {wanted} is requested")
        (there,) = [one for _, one in self.kube.of_kind("statefulsets")]
        templates = {one["metadata"]["name"] for one in there["spec"]["volumeClaimTemplates"]}
        if not wanted.keys() <= templates:
            raise HistoryError(f"the StatefulSet has {sorted(templates)}, but {sorted(wanted)} are requested")

    # ---- kubelets
    async def _kubernetes(self) -> None:
        while True:
            self.controllers.run_once()
            for path, pod in self.kube.of_kind("pods"):
                if pod["metadata"]["name"].startswith(f"{NAME}-bookie-"):
                    self._kubelet(path, pod)
            await asyncio.sleep(1.0)

    def _kubelet(self, path: str, pod: dict[str, Any]) -> None:
        name, metadata = pod["metadata"]["name"], pod["metadata"]
        if name in self._busy:
            return
        if "deletionTimestamp" in metadata:
            self._work(name, self._end(path, metadata["uid"], host_of(name)))
        elif pod["spec"].get("nodeName") and ZONE_ANNOTATION in metadata.get("annotations", {}):
            place = self.world.bookies.get(host_of(name))
            if (place is None or place.running is None) and host_of(name) not in self.held:
                self._work(name, self._begin(pod, host_of(name)))
            ready = place is not None and place.running is not None and place.running.registration.registered
            status = {
                "podIP": host_of(name),
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            }
            if pod.get("status") != status:
                self.kube.touch(path, pod | {"status": status})

    def _work(self, name: str, work: Any) -> None:
        self._busy.add(name)
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(lambda _: self._busy.discard(name))

    async def _begin(self, pod: dict[str, Any], host: str) -> None:
        """Start a pod's process on the disk of its volumes; the kubelet restarts it in its next round if it ends."""
        name, zone = pod["metadata"]["name"], pod["metadata"]["annotations"][ZONE_ANNOTATION]
        claim = self.kube.objects[object_path("v1", "PersistentVolumeClaim", NAMESPACE, f"ledgers0-{name}")]
        volume, chance = claim["spec"]["volumeName"], self.world.chance
        place = self.world.bookies.get(host)
        if volume not in self.disks:
            self.disks[volume] = SimDisk(chance=random.Random(chance.randrange(1 << 30)), latency_s=0.0005)
            place = None
        self._volumes[host] = volume
        if place is None:
            place = self.world.bookies[host] = SimBookie(host, self.disks[volume])
        self.world.changes_of[host] = {"rack": RackSettings(rack=zone)}
        try:
            async with asyncio.timeout(120):
                await self.world.start_bookie(host)
            if place.running is not None:
                self.promises.bookies_on[volume] = place.running.bookie_id
        except (QuireError, TimeoutError, asyncio.CancelledError) as error:
            self.world.loop.note(f"{host} did not start: {error}")
            if place.node is not None and place.running is None:
                self.world.kill_bookie(host)
        await asyncio.sleep(1.0)

    async def _end(self, path: str, uid: str, host: str) -> None:
        try:
            async with asyncio.timeout(60):
                if host in self.world.bookies:
                    await self.world.stop_bookie(host)
        except (TimeoutError, asyncio.CancelledError):
            self.world.kill_bookie(host)
        place = self.world.bookies.pop(host, None)
        if place is not None:
            self.disks[self._volumes[host]] = place.disk  # the next pod finds the disk as the stop left it
        there = self.kube.objects.get(path)
        if there is not None and there["metadata"]["uid"] == uid:
            del self.kube.objects[path]


@functools.cache
def host_of(pod: str) -> str:
    """Return the host under which a pod's bookie registers."""
    meta = Bookie.model_validate(bookie() | {"metadata": {"name": NAME, "namespace": NAMESPACE}}).meta
    return bookie_host(meta, pod)
