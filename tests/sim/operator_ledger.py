"""The life of a ManagedLedger from its declaration to its deletion, with the operator killed around any of its writes.

The operator's reconciliation, including its requests to brokers, is production code; the API server, the controllers,
the brokers' REST and the runs of jobs are simulated. The life has chapters; each begins with an action of an
administrator or a scheduled time, and ends when nothing changes any more. A chapter runs once undisturbed, and again
with a kill before and after each write: it must end with the same children, status and namespace, and nothing may be
created twice.
"""

import copy
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from quire_operator.builders.naming import RUN_ANNOTATION
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.ledger_passwords import LedgerPasswords
from quire_operator.cluster.memory import Memory
from quire_operator.cluster.paths import bookie_path, managed_ledger_path, object_path
from quire_operator.errors import ConflictError, OperatorError, RefusedError
from quire_operator.plan.operations import rfc3339
from quire_operator.reconcile import reconcile_managed_ledger
from tests.sim.history import HistoryError
from tests.sim.operator_api import NAMESPACE, Controllers, OperatorKilledError, SimKube
from tests.sim.operator_brokers import SimBrokers
from tests.support.kube_resources import bookie, managed_ledger

NAME = "orders"
LEDGER = managed_ledger_path(NAMESPACE, NAME)
NOON_S = 1_900_022_400.0
"""2030-03-18T00:00:00Z: the begin of the first hour."""
HOUR_S = 3600.0
PASSES_MAX = 200
_TIMES = frozenset(
    {
        *("lastTransitionTime", "since", "startedAt", "stepStartedAt", "endedAt", "lastSuccess", "startTime"),
        *("completionTime", "readyMark"),
    }
)
BAD_IMAGE = "quire:bad"
ROLLOUT = {"readyWithin": "10s", "stableFor": "0s"}
PATIENCE_PASSES = 15
"""More seconds than `readyWithin`."""
_NUMBERS = frozenset({"uid", "resourceVersion", "generation", "observedGeneration"})
_SUMMARY = json.dumps({"outcome": "succeeded", "counts": {"rows": 3}, "outputs": ["s3://reports/shop"]})
TAIL = {"name": "tail", "initialPosition": "Latest"}
TOPICS: list[dict[str, Any]] = [
    {"name": "placed", "partitions": 3, "cursors": [{"name": "billing"}, TAIL]},
    {"name": "bare", "partitions": 2},
    {"name": "audit", "cursors": [{"name": "keeper"}]},
]
MORE_TOPICS: list[dict[str, Any]] = [
    TOPICS[0] | {"partitions": 5},
    TOPICS[1] | {"partitions": 4},
    TOPICS[2] | {"cursors": [{"name": "keeper"}, TAIL]},
    {"name": "returns"},
]
TRAFFIC = {"name": "traffic", "kind": "throughput", "schedule": "@hourly", "output": "s3://reports/shop"}
SPEC: dict[str, Any] = {
    "topics": TOPICS,
    "retention": {"time": "1h", "size": "1Gi", "ttl": "2h"},
    "backlogQuota": {"size": "1Gi", "policy": "ProducerException"},
    "access": [
        {"role": "shop", "actions": ["Produce", "Consume"]},
        {"role": "keeper", "actions": ["Admin"]},
    ],
    "offload": {"target": "s3://cold", "region": "eu"},
    "analytics": [TRAFFIC],
    "spark": {"image": "quire-jobs:1", "runsKept": 1},
    "deletionPolicy": "Delete",
    "brokers": {"rollout": ROLLOUT},
}


@dataclass
class Stage:
    """Owns everything outside the operator, and the operator's memory while it lives."""

    kube: SimKube
    controllers: Controllers
    brokers: SimBrokers
    now_s: float = NOON_S + 60.0
    memory: Memory = field(default_factory=Memory)
    created: Counter[str] = field(default_factory=Counter)
    """How often an object was created at a path chosen by its creator: the runs of jobs."""
    runs_end: bool = True
    """Whether the drivers of jobs end soon, or never."""
    refusals: list[str] = field(default_factory=list)
    kills: int = 0

    @classmethod
    def make(cls) -> "Stage":
        """Return a cluster of three machines with a pool, and nothing else."""
        kube = SimKube(random.Random(1))
        stage = cls(kube, Controllers(kube, {}), SimBrokers(kube, lambda _: False))
        stage._connect()
        for number in range(3):
            stage.controllers.add_node(f"n{number}", "z")
        kube.put(bookie_path(NAMESPACE, "pool"), bookie())
        return stage

    def _connect(self) -> None:
        self.brokers.serves = lambda host: any(
            pod.get("status", {}).get("podIP") == host for _, pod in self.kube.of_kind("pods")
        )

        def creating(path: str) -> None:
            self.created[path] += 1

        def deleting() -> None:
            running = [
                pod["metadata"]["name"]
                for _, pod in self.kube.of_kind("pods")
                if "run" in pod["metadata"] and pod["status"]["phase"] == "Running"
            ]
            if running:
                raise HistoryError(f"the namespace is deleted while jobs read it: {running}")

        self.kube.creating, self.brokers.deleting = creating, deleting

    def saved(self) -> bytes:
        """Serialize the state for repetitions; the operator's memory is lost with its process."""
        there = (self.kube.objects, self.kube._numbers, self.controllers.nodes, self.now_s, self.created, self.runs_end)
        kept = (self.brokers.tenants, self.brokers.namespaces, self.brokers.isolation, self.brokers.made)
        return pickle.dumps((there, kept))

    @classmethod
    def again(cls, saved: bytes) -> "Stage":
        """Restore a saved state."""
        (objects, numbers, nodes, now_s, created, runs_end), kept = pickle.loads(saved)
        kube = SimKube(random.Random(1), objects, _numbers=numbers)
        stage = cls(kube, Controllers(kube, nodes), SimBrokers(kube, lambda _: False, *kept), now_s)
        stage.created, stage.runs_end = created, runs_end
        stage._connect()
        return stage

    # ---- the administrator
    def declare(self, **spec: Any) -> None:
        """Apply the ManagedLedger, with fields of its spec replaced."""
        there = self.kube.objects.get(LEDGER)
        if there is None:
            made = managed_ledger(**(SPEC | spec))
            metadata = {"name": NAME, "creationTimestamp": rfc3339(self.now_s)}
            self.kube.put(LEDGER, made | {"metadata": metadata})
            return
        metadata = there["metadata"] | {"generation": there["metadata"]["generation"] + 1}
        self.kube.touch(LEDGER, there | {"spec": there["spec"] | copy.deepcopy(spec), "metadata": metadata})

    def ask_for_a_run(self) -> None:
        """Request a run of a job as `kubectl quire job run` does."""
        there = self.kube.objects[LEDGER]
        wish = {RUN_ANNOTATION: f"traffic@{rfc3339(self.now_s)}"}
        self.kube.touch(LEDGER, there | {"metadata": there["metadata"] | {"annotations": wish}})

    def delete(self) -> None:
        """Delete the resource as `kubectl delete` does."""
        there = self.kube.objects[LEDGER]
        metadata = there["metadata"] | {"deletionTimestamp": rfc3339(self.now_s)}
        self.kube.touch(LEDGER, there | {"metadata": metadata})

    # ---- the operator
    async def reconcile_once(self) -> None:
        """Reconcile once; after a kill, reconcile again in a new process without memory."""
        try:
            await reconcile_managed_ledger(
                self.kube,  # type: ignore[arg-type]
                BrokerRest(self.brokers),  # type: ignore[arg-type]
                NAMESPACE,
                NAME,
                default_image="quire:1",
                now_s=self.now_s,
                memory=self.memory,
                passwords=LedgerPasswords(self.kube, draw=bytes),  # type: ignore[arg-type]
            )
        except OperatorKilledError:
            self.kills += 1
            self.memory = Memory()
        except RefusedError as error:
            self.refusals.append(str(error))
        except OperatorError as error:
            assert not isinstance(error, ConflictError), "the operator has no concurrent writer here"

    async def until_quiet(self) -> None:
        """Alternate between the operator and Kubernetes until nothing changes any more."""
        quiet = 0
        for _ in range(PASSES_MAX):
            before = self._parts()
            await self.reconcile_once()
            self._kubernetes()
            self.now_s += 1.0
            quiet = quiet + 1 if self._parts() == before else 0
            if quiet == (PATIENCE_PASSES if self._is_waiting() else 3):
                return
        raise AssertionError(f"still changing: {self.kube.objects.get(LEDGER, {}).get('status')}")

    def _is_waiting(self) -> bool:
        """Return whether a broker is not ready, so that the operator acts when its time is over."""
        return any("run" not in pod["metadata"] and "status" not in pod for _, pod in self.kube.of_kind("pods"))

    def _parts(self) -> object:
        objects = {
            path: {key: value for key, value in one.items() if key != "metadata"} | {"uid": one["metadata"]["uid"]}
            for path, one in self.kube.objects.items()
            if "/events/" not in path
        }
        return pickle.dumps((objects, self.brokers.state()))

    # ---- Kubernetes
    def _kubernetes(self) -> None:
        """Run each controller once."""
        there = self.kube.objects.get(LEDGER)
        if there is not None and "deletionTimestamp" in there["metadata"] and not there["metadata"].get("finalizers"):
            self._collect()
            return
        self.controllers.run_once()
        self._roll()
        for path, pod in self.kube.of_kind("pods"):
            self._kubelet(path, pod)
        for path, job in self.kube.of_kind("jobs"):
            self._job(path, job)
        jobs = {path.rpartition("/")[2] for path, _ in self.kube.of_kind("jobs")}
        for path, pod in self.kube.of_kind("pods"):
            if pod["metadata"].get("run") not in (None, *jobs):
                del self.kube.objects[path]

    def _collect(self) -> None:
        """Remove the deleted resource and all that it owned."""
        uid = self.kube.objects[LEDGER]["metadata"]["uid"]
        for path, one in list(self.kube.objects.items()):
            owners = [owner["uid"] for owner in one["metadata"].get("ownerReferences", ())]
            if path == LEDGER or uid in owners or "/pods/" in path:
                del self.kube.objects[path]

    def _roll(self) -> None:
        """Roll the brokers' StatefulSet, whose pods Kubernetes replaces by itself."""
        for _, one in self.kube.of_kind("statefulsets"):
            for path, pod in self.kube.of_kind("pods"):
                revision = pod["metadata"].get("labels", {}).get("controller-revision-hash")
                if revision not in (None, one.get("status", {}).get("updateRevision")):
                    del self.kube.objects[path]
                    self.brokers.unload()

    def _kubelet(self, path: str, pod: dict[str, Any]) -> None:
        """Make a broker's pod ready at once, unless its image is broken."""
        name = pod["metadata"]["name"]
        if pod["spec"]["containers"][0].get("image") == BAD_IMAGE:
            return
        if "run" not in pod["metadata"] and pod["spec"].get("nodeName") and "status" not in pod:
            ready = [{"type": "Ready", "status": "True"}]
            self.kube.touch(path, pod | {"status": {"podIP": f"ip-{name}", "phase": "Running", "conditions": ready}})

    def _job(self, path: str, job: dict[str, Any]) -> None:
        """Advance a job: its driver starts in the first round, ends in the second, and its controller reports that."""
        name = job["metadata"]["name"]
        at = object_path("v1", "Pod", NAMESPACE, f"{name}-x")
        driver = self.kube.objects.get(at)
        if "conditions" in job.get("status", {}):
            return
        if driver is None:
            template = job["spec"]["template"]
            metadata = template["metadata"] | {"name": f"{name}-x", "run": name}
            status = {"phase": "Running"}
            made = {"metadata": metadata, "spec": {**template["spec"], "nodeName": "n0"}, "status": status}
            self.kube.put(at, made)
            self.kube.touch(path, job | {"status": {"startTime": rfc3339(self.now_s)}})
        elif self.runs_end:
            said = [{"state": {"terminated": {"exitCode": 0, "message": _SUMMARY}}}]
            self.kube.touch(at, driver | {"status": {"phase": "Succeeded", "containerStatuses": said}})
            now = rfc3339(self.now_s)
            ends = [{"type": "Complete", "status": "True", "lastTransitionTime": now}]
            status = job["status"] | {"completionTime": now, "conditions": ends}
            self.kube.touch(path, job | {"status": status})

    def images(self) -> set[str]:
        """Return the images of the brokers that are ready."""
        pods = [pod for _, pod in self.kube.of_kind("pods") if "run" not in pod["metadata"] and "status" in pod]
        return {pod["spec"]["containers"][0]["image"] for pod in pods}

    # ---- the outcome
    def outcome(self) -> Any:
        """Return children, status and namespace, without numbers and dates that differ between processes."""
        objects = {path: _plain(one) for path, one in sorted(self.kube.objects.items()) if "/events/" not in path}
        return objects, self.brokers.state(), sorted(self.brokers.made.items()), sorted(self.created.items())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if key not in _TIMES and key not in _NUMBERS}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _declared(stage: Stage) -> None:
    stage.declare()


def _more_is_declared(stage: Stage) -> None:
    stage.brokers.publish(10)
    retention = {"time": "3h", "size": "1Gi", "ttl": "1h"}
    access = [{"role": "shop", "actions": ["Produce"]}, {"role": "bill", "actions": ["Consume", "Admin"]}]
    stage.declare(topics=MORE_TOPICS, retention=retention, access=access)


def _an_hour_comes(stage: Stage) -> None:
    stage.brokers.publish(10)
    stage.now_s = (stage.now_s // HOUR_S + 1) * HOUR_S + 5.0


def _a_run_is_asked_for(stage: Stage) -> None:
    stage.now_s += 600.0
    stage.ask_for_a_run()


def _another_image(stage: Stage) -> None:
    stage.declare(brokers={"image": "quire:2", "rollout": ROLLOUT})


def _a_bad_image(stage: Stage) -> None:
    stage.declare(brokers={"image": BAD_IMAGE, "rollout": ROLLOUT})


def _a_good_image_again(stage: Stage) -> None:
    rollout = stage.kube.objects[LEDGER]["status"]["rollout"]
    if rollout["step"] != "RolledBack" or stage.images() != {"quire:2"}:
        raise HistoryError(f"a bad image was not taken back: {rollout}, {stage.images()}")
    stage.declare(brokers={"image": "quire:3", "rollout": ROLLOUT})


def _an_hour_comes_with_a_long_run(stage: Stage) -> None:
    stage.runs_end = False
    _an_hour_comes(stage)


def _the_job_is_taken_away(stage: Stage) -> None:
    stage.declare(analytics=[])


def _the_job_comes_back(stage: Stage) -> None:
    stage.now_s += 60.0
    stage.declare(analytics=[TRAFFIC])


STORY: tuple[tuple[str, Callable[[Stage], None]], ...] = (
    ("declared", _declared),
    ("more is declared", _more_is_declared),
    ("the first hour", _an_hour_comes),
    ("the second hour", _an_hour_comes),
    ("a run is asked for", _a_run_is_asked_for),
    ("another image", _another_image),
    ("a bad image", _a_bad_image),
    ("a good image again", _a_good_image_again),
    ("a long run", _an_hour_comes_with_a_long_run),
    ("the job is taken away", _the_job_is_taken_away),
    ("the job comes back", _the_job_comes_back),
    ("another long run", _an_hour_comes_with_a_long_run),
    ("deleted", Stage.delete),
)
"""Two of the runs continue when their job is removed."""


async def run_chapter(saved: bytes, begin: Callable[[Stage], None], kill: tuple[int, bool] | None = None) -> Stage:
    """Run one chapter. `kill`: the write at which to kill, and whether before it."""
    stage = Stage.again(saved)
    begin(stage)
    if kill is not None:
        stage.kube.kill_at, stage.kube.kill_before = kill
    await stage.until_quiet()
    return stage
