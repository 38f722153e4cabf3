"""Random faults of pods, machines, networks, disks and of the cluster itself, and changes that a user makes meanwhile.

Each `Fault` begins and ends by itself: it repairs only what it broke of the environment (starts a machine, joins a
network, removes a file), and never repairs Quire. All choices come from one `random.Random`.
"""

import random
from typing import ClassVar

from tests.e2e import manifests, nodes
from tests.e2e.kube import Manifest, until
from tests.e2e.release import kubectl
from tests.e2e.stack import BOOKIE_PODS, BROKER_PODS, ETCD_PODS, OPERATOR_PODS, Stack

AUTO_RECOVERY_PODS = "app.kubernetes.io/name=quire-autorecovery"
PARTS = {
    "bookie": BOOKIE_PODS,
    "broker": BROKER_PODS,
    "etcd": ETCD_PODS,
    "operator": OPERATOR_PODS,
    "autorecovery": AUTO_RECOVERY_PODS,
}
CONTROL_PLANE = "e2e-control-plane"
SEEN_S = 300.0


class Fault:
    """One thing that breaks for a while."""

    name: ClassVar[str]
    weight: ClassVar[int] = 1
    destroys: ClassVar[bool] = False
    """Data of one bookie is gone: only while everything has all of its replicas, and nothing else is broken."""
    is_alone: ClassVar[bool] = False
    """Nothing else can be done until it ends."""

    def __init__(self, stack: Stack, chance: random.Random) -> None:
        self.stack, self.chance = stack, chance
        self.about = ""

    def begin(self) -> float:
        """Break it and return the seconds until `end`."""
        raise NotImplementedError

    def can_end(self) -> bool:
        """Return whether what `end` needs is available: a machine that was killed meanwhile is not."""
        return True

    def end(self) -> None:
        """Repair the environment; processes repair themselves."""

    def _pod(self, *parts: str) -> Manifest | None:
        part = self.chance.choice(parts or tuple(PARTS))
        pods = [pod for pod in self.stack.cluster.pods(PARTS[part]) if pod["spec"].get("nodeName")]
        drawn = self.chance.random()  # drawn also if no pod exists, so that the seed decides the rest alone
        if not pods:
            self.about = f"no {part}"
            return None
        pod = pods[int(drawn * len(pods))]
        self.about = str(pod["metadata"]["name"])
        return pod


def _signal(pod: Manifest, signal: str) -> None:
    nodes.signal_processes(pod["spec"]["nodeName"], pod["metadata"]["name"], signal)


class ProcessKilled(Fault):
    """SIGKILL to every process of a pod."""

    name, weight = "kill a process", 6

    def begin(self) -> float:
        pod = self._pod()
        if pod is not None and nodes.is_running(pod["spec"]["nodeName"]):
            _signal(pod, "KILL")
        return 0.0


class PodDeleted(Fault):
    """A pod is deleted, half of the time without a grace period."""

    name, weight = "delete a pod", 6

    def begin(self) -> float:
        pod, grace_s = self._pod(), self.chance.choice((0, None))
        if pod is not None:
            self.about += "" if grace_s is None else " at once"
            self.stack.cluster.delete("v1", "Pod", pod["metadata"]["name"], grace_s)
        return 0.0


class PodHangs(Fault):
    """All processes of a pod stop for a while, as in a long page-out; the kubelet may kill them meanwhile."""

    name, weight = "stop a process", 4
    pod: Manifest | None = None

    def begin(self) -> float:
        self.pod, seconds = self._pod(), self.chance.uniform(2, 40)
        if self.pod is not None and nodes.is_running(self.pod["spec"]["nodeName"]):
            _signal(self.pod, "STOP")
        return seconds

    def end(self) -> None:
        if self.pod is not None and nodes.is_running(self.pod["spec"]["nodeName"]):
            _signal(self.pod, "CONT")


class OnMachine(Fault):
    """Concerns one worker machine."""

    node = ""

    def _draw(self) -> str:
        found = sorted(one["metadata"]["name"] for one in self.stack.cluster.items("v1", "Node"))
        self.node = self.chance.choice([name for name in found if name != CONTROL_PLANE])
        self.about = self.node
        return self.node


class MachineKilled(OnMachine):
    """A machine loses its power and comes back later, with its volumes."""

    name, weight = "kill a machine", 3

    def begin(self) -> float:
        node, seconds = self._draw(), self.chance.uniform(5, 90)
        if nodes.is_running(node):
            nodes.kill(node)
        return seconds

    def end(self) -> None:
        if not nodes.is_running(self.node):
            nodes.start(self.node)


class MachineCutOff(OnMachine):
    """A machine runs and reaches no other one."""

    name, weight = "cut a machine off", 3
    is_cut = False

    def begin(self) -> float:
        node, seconds = self._draw(), self.chance.uniform(5, 60)
        self.is_cut = nodes.is_running(node)
        if self.is_cut:
            nodes.cut(node)
        return seconds

    def end(self) -> None:
        # The rules of a machine that was killed meanwhile are gone.
        if self.is_cut and nodes.is_running(self.node) and nodes.is_cut(self.node):
            nodes.join(self.node)


class Scaled(Fault):
    """Something that the operator does not own has no replicas for a while."""

    target, usual = "", 1
    longest_s = 60.0

    def begin(self) -> float:
        seconds = self.chance.uniform(5, self.longest_s)
        kubectl(self.stack.cluster, "scale", self.target, "--replicas=0")
        return seconds

    def end(self) -> None:
        kubectl(self.stack.cluster, "scale", self.target, f"--replicas={self.usual}")


class OperatorStopped(Scaled):
    """The operator is away."""

    name, weight = "stop the operator", 2
    target, longest_s = f"deployment/{manifests.OPERATOR}", 120.0


class EtcdRestarted(Scaled):
    """All members of etcd are stopped, and started again."""

    name, weight = "stop etcd", 2
    target = f"statefulset/{manifests.ETCD}"

    def begin(self) -> float:
        self.usual = self.stack.etcd_members
        return super().begin()


class ApiServerHangs(Fault):
    """The API server does not respond: nothing can be read or changed in the cluster."""

    name, weight, is_alone = "stop the API server", 1, True

    def begin(self) -> float:
        seconds = self.chance.uniform(5, 30)
        nodes.shell(CONTROL_PLANE, "pkill -STOP kube-apiserver")
        return seconds

    def end(self) -> None:
        nodes.shell(CONTROL_PLANE, "pkill -CONT kube-apiserver || true")  # the kubelet may have killed it


class DiskFilled(Fault):
    """A volume of a bookie has no space left for a while."""

    name, weight = "fill a disk", 3
    node, volume = "", ""

    def begin(self) -> float:
        pod, drawn = self._pod("bookie"), self.chance.random()
        seconds = self.chance.uniform(10, 60)
        if pod is None or not nodes.is_running(pod["spec"]["nodeName"]):
            return 0.0
        folders = self.stack.volumes_of(pod["metadata"]["name"])
        self.node, self.volume = pod["spec"]["nodeName"], folders[int(drawn * len(folders))]
        nodes.fill(self.node, self.volume, leave_kib=64)
        self.about += f" {self.volume}"
        return seconds

    def can_end(self) -> bool:
        return nodes.is_running(self.node)

    def end(self) -> None:
        nodes.empty(self.node, self.volume)


class VolumesWiped(Fault):
    """A bookie loses its data."""

    name, weight, destroys = "wipe a bookie", 1, True

    def begin(self) -> float:
        pod = self._pod("bookie")
        assert pod is not None, "the pool was well"
        name, before = pod["metadata"]["name"], self.stack.ids()[pod["metadata"]["name"]]
        for folder in self.stack.volumes_of(name):
            nodes.shell(pod["spec"]["nodeName"], f"rm -rf {folder}/* {folder}/.[!.]*; ls -A {folder}")
        _signal(pod, "KILL")
        # Until then the status is the one from before, in which nothing is missing.
        until(f"{name} is a new bookie", lambda: self.stack.ids().get(name) not in (None, before), SEEN_S)
        return 0.0


class PoolScaled(Fault):
    """A user adds a bookie and removes it later."""

    name, weight = "scale the pool", 1

    def begin(self) -> float:
        self.about = f"{self.stack.replicas} to {self.stack.replicas + 1}"
        self.stack.change_pool(replicas=self.stack.replicas + 1)
        return self.chance.uniform(20, 90)

    def end(self) -> None:
        self.stack.change_pool(replicas=self.stack.replicas)


class PodsRolled(Fault):
    """A user changes the template of all bookies' pods, and the operator replaces them one by one."""

    name, weight = "roll the bookies", 1

    def begin(self) -> float:
        stamp = {"quire.dev/e2e-chaos": str(self.chance.randrange(1_000_000))}
        self.stack.change_pool(podTemplate={"metadata": {"annotations": stamp}})
        return 0.0


FAULTS: tuple[type[Fault], ...] = (
    ProcessKilled,
    PodDeleted,
    PodHangs,
    MachineKilled,
    MachineCutOff,
    OperatorStopped,
    EtcdRestarted,
    ApiServerHangs,
    DiskFilled,
    VolumesWiped,
    PoolScaled,
    PodsRolled,
)
