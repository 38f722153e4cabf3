"""A simulated API server with the functions that the operator uses, and the controllers behind it.

Objects are dicts by path. The operator's production code uses it through the methods of `Kube`. The operator may be
killed before and after any write, any read may be late, and the write of a status may meet a conflict. Controllers:
StatefulSet, claims and local volumes, scheduler, collection of pods whose node is gone. Pods start and stop simulated
bookies through `on_pod_*`.
"""

import asyncio
import hashlib
import json
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from quire_operator.builders import Manifest, ReadManifest
from quire_operator.cluster.paths import collection, manifest_path, object_path
from quire_operator.errors import ConflictError, KubeError

NAMESPACE = "ns"
STORAGE_CLASS = "local"
"""The storage class of claims that name none."""
HOST_LABEL, ZONE_LABEL = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


Objects = list[tuple[str, Manifest]]
"""Pairs of path and object."""


class OperatorKilledError(Exception):
    """The operator's process was killed at this write."""


T = TypeVar("T")


def _copied(thing: T) -> T:
    """Return a deep copy, in a quarter of the time of `copy.deepcopy`, which dominated the runs."""
    return cast(T, pickle.loads(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)))


@dataclass
class SimKube:
    """Owns the objects of the API server."""

    chance: random.Random
    objects: dict[str, Manifest] = field(default_factory=dict)
    kill_at: int = -1
    """Number of the write, counted over all writes, around which the operator is killed."""
    kill_before: bool | None = None
    """Whether the kill comes before the write or after it; None: decided by its number."""
    writes: int = 0
    conflict_chance: float = 0.0
    shrinking: Callable[[int, int], None] = lambda before, after: None
    """Called before the StatefulSet is scaled down."""
    releasing: Callable[[Manifest], None] = lambda claim: None
    """Called before a claim is deleted."""
    recording: Callable[[Manifest, Manifest], None] = lambda before, after: None
    """Called with two states of a resource before the second is written."""
    creating: Callable[[str], None] = lambda path: None
    """Called before an object is created under a name chosen by its creator."""
    _numbers: int = 0

    # ---- methods that the operator calls

    async def get(self, path: str) -> Manifest | None:
        await self._travel()
        return _copied(self.objects.get(path))

    async def list(self, path: str, selector: str = "") -> list[Manifest]:
        await self._travel()
        kind = path.rsplit("/", 1)[-1]
        # There is only one namespace.
        found = [one for at, one in sorted(self.objects.items()) if at.rsplit("/", 2)[-2] == kind]
        wanted = dict(pair.split("=") for pair in selector.split(",")) if selector else {}
        return [_copied(one) for one in found if wanted.items() <= one["metadata"].get("labels", {}).items()]

    async def apply(self, manifest: ReadManifest) -> Manifest:
        async with self.write():
            path = manifest_path(manifest)
            there = self.objects.get(path)
            if there is None:
                return _copied(self.put(path, manifest))
            if manifest["kind"] == "StatefulSet":
                before, after = there["spec"], manifest["spec"]
                assert before.get("volumeClaimTemplates") == after.get("volumeClaimTemplates"), "immutable field"
                if after["replicas"] < before["replicas"]:
                    self.shrinking(before["replicas"], after["replicas"])
            changed = there | {key: value for key, value in manifest.items() if key != "metadata"}
            if changed != there:
                changed["metadata"] = there["metadata"] | {"generation": there["metadata"]["generation"] + 1}
                self.touch(path, changed)
            return _copied(self.objects[path])

    async def merge(self, path: str, patch: ReadManifest) -> Manifest:
        async with self.write():
            there = self._present(path)
            metadata = patch.get("metadata", {})
            for name in ("uid", "resourceVersion"):
                if metadata.get(name, there["metadata"].get(name)) != there["metadata"].get(name):
                    raise ConflictError(409, f"{path}: another {name}")
            changed = _merged(there, patch)
            if changed.get("spec") != there.get("spec"):
                changed["metadata"] = changed["metadata"] | {"generation": there["metadata"].get("generation", 1) + 1}
            return _copied(self.touch(path, changed))

    async def set_finalizer(self, path: str, meta: Any, finalizer: str, present: bool) -> None:
        finalizers = [finalizer] if present else []
        await self.merge(path, {"metadata": {"finalizers": finalizers, "resourceVersion": meta.resource_version}})

    async def replace(self, path: str, manifest: ReadManifest) -> Manifest:
        async with self.write(counts=path.endswith("/status")):
            if path.endswith("/status"):
                path = path.removesuffix("/status")
                if self.chance.random() < self.conflict_chance:
                    self.touch(path, self._present(path))  # another client labelled it meanwhile
                self._expect(path, manifest)
                changed = self._present(path) | {"status": manifest["status"]}
                self.recording(self._present(path), changed)
                return _copied(self.touch(path, changed))
            self._expect(path, manifest)
            return _copied(self.touch(path, _copied(dict(manifest))))

    async def create(self, path: str, manifest: ReadManifest) -> Manifest:
        async with self.write():
            self._numbers += 1
            at = f"{path}/{manifest['metadata'].get('name', f'generated-{self._numbers}')}"
            if at in self.objects:
                raise ConflictError(409, f"{at}: already exists")
            if "name" in manifest["metadata"]:
                self.creating(at)
            return _copied(self.put(at, manifest))

    async def delete(self, path: str, uid: str, *, orphan: bool = False, force: bool = False) -> None:
        async with self.write():
            there = self.objects.get(path)
            if there is None or there["metadata"]["uid"] != uid:
                return
            kind = path.rsplit("/", 2)[-2]
            if kind == "statefulsets":
                assert orphan, "its pods would be deleted with it"
                self.touch(path, there | {"metadata": there["metadata"] | {"deletionTimestamp": "now"}})
                return
            if kind == "jobs":
                del self.objects[path]  # its pods are collected
                return
            if kind == "configmaps":
                pods = [pod for _, pod in self.of_kind("pods") if there["metadata"]["name"] in _mounted(pod)]
                assert not pods, f"{path} is deleted, and pods mount it"
                del self.objects[path]
                return
            assert kind in ("pods", "persistentvolumeclaims"), path
            if kind == "persistentvolumeclaims" and "deletionTimestamp" not in there["metadata"]:
                self.releasing(there)
            # Controllers remove it: a pod once its process has ended, a claim once no pod uses it.
            self.touch(path, there | {"metadata": there["metadata"] | {"deletionTimestamp": "now", "forced": force}})

    # ---- methods for the simulated world

    def put(self, path: str, manifest: ReadManifest) -> Manifest:
        """Create an object."""
        self._numbers += 1
        metadata = {"namespace": NAMESPACE, "generation": 1, "name": path.rsplit("/", 1)[-1]}
        made = _copied(dict(manifest))
        made["metadata"] = metadata | made.get("metadata", {}) | {"uid": f"u{self._numbers}"}
        return self.touch(path, made)

    def touch(self, path: str, changed: Manifest) -> Manifest:
        """Replace an object by another version of it."""
        self._numbers += 1
        self.objects[path] = changed | {
            "metadata": changed["metadata"] | {"resourceVersion": str(self._numbers)},
        }
        return self.objects[path]

    def of_kind(self, plural: str) -> Objects:
        """Return the paths and objects of a kind."""
        return [(path, one) for path, one in sorted(self.objects.items()) if path.rsplit("/", 2)[-2] == plural]

    def _present(self, path: str) -> Manifest:
        if path not in self.objects:
            raise KubeError(404, f"{path}: not found")
        return self.objects[path]

    def _expect(self, path: str, manifest: ReadManifest) -> None:
        if manifest["metadata"]["resourceVersion"] != self._present(path)["metadata"]["resourceVersion"]:
            raise ConflictError(409, f"{path}: has changed")

    async def _travel(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 0.02))

    def write(self, *, counts: bool = True) -> "_Write":
        """Return the context of one write. `counts`: the operator may be killed there."""
        return _Write(self, counts)


@dataclass
class _Write:
    """The context of one write: the operator may be killed before it, or after it without seeing the response."""

    kube: SimKube
    counts: bool

    async def __aenter__(self) -> None:
        kube = self.kube
        await kube._travel()
        kube.writes += self.counts
        before = kube.writes % 2 if kube.kill_before is None else kube.kill_before
        if self.counts and kube.writes == kube.kill_at and before:
            raise OperatorKilledError

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if error is None and self.counts and self.kube.writes == self.kube.kill_at:
            raise OperatorKilledError
        await self.kube._travel()


def _mounted(pod: ReadManifest) -> list[str]:
    """Return the ConfigMaps that a pod mounts."""
    volumes = pod["spec"].get("volumes", ())
    return [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]


def _merged(there: Manifest, patch: ReadManifest) -> Manifest:
    found = dict(there)
    for key, value in patch.items():
        found[key] = _merged(found.get(key) or {}, value) if isinstance(value, dict) else _copied(value)
    return found


def revision(template: ReadManifest) -> str:
    """Return the revision of a pod template."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


@dataclass
class Controllers:
    """Performs the work of Kubernetes' own controllers; `run_once` is one round of all of them."""

    kube: SimKube
    nodes: dict[str, str]
    """Zones by node."""

    def add_node(self, name: str, zone: str) -> None:
        """Add a machine."""
        self.nodes[name] = zone
        labels = {HOST_LABEL: name, ZONE_LABEL: zone}
        self.kube.put(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})

    def add_storage_class(self) -> None:
        """Add the default storage class, whose volumes can grow."""
        made = {"metadata": {}, "allowVolumeExpansion": True}
        self.kube.put(f"/apis/storage.k8s.io/v1/storageclasses/{STORAGE_CLASS}", made)

    def remove_node(self, name: str) -> None:
        """Remove a machine and its pods."""
        del self.nodes[name], self.kube.objects[f"/api/v1/nodes/{name}"]
        for path, pod in self.kube.of_kind("pods"):
            if pod["spec"].get("nodeName") == name:
                del self.kube.objects[path]

    def run_once(self) -> None:
        """Run each controller once."""
        self._claims()
        for path, there in self.kube.of_kind("statefulsets"):
            self._stateful_set(path, there)
        for path, pod in self.kube.of_kind("pods"):
            if "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName"):
                del self.kube.objects[path]  # no container of it runs
            elif not pod["spec"].get("nodeName"):
                self._schedule(path, pod)

    def collect(self, pods: str) -> None:
        """Delete the StatefulSets of a deleted owner and end their pods. `pods`: the prefix of their names."""
        for path, _ in self.kube.of_kind("statefulsets"):
            del self.kube.objects[path]
        for path, pod in self.kube.of_kind("pods"):
            if pod["metadata"]["name"].startswith(pods) and "deletionTimestamp" not in pod["metadata"]:
                self.kube.touch(path, pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "now"}})

    def _claims(self) -> None:
        pods = {pod["metadata"]["name"] for _, pod in self.kube.of_kind("pods")}
        for path, claim in self.kube.of_kind("persistentvolumeclaims"):
            if "deletionTimestamp" in claim["metadata"] and claim["metadata"]["name"].partition("-")[2] not in pods:
                del self.kube.objects[path]
            elif "status" in claim:
                size = claim["spec"]["resources"]["requests"]["storage"]
                if claim["status"]["capacity"]["storage"] != size:  # expanded while in use
                    self.kube.touch(path, claim | {"status": claim["status"] | {"capacity": {"storage": size}}})

    def _stateful_set(self, path: str, there: Manifest) -> None:
        if "deletionTimestamp" in there["metadata"]:
            del self.kube.objects[path]  # around its pods
            return
        kube, spec, name = self.kube, there["spec"], there["metadata"]["name"]
        wanted = [f"{name}-{ordinal}" for ordinal in range(spec["replicas"])]
        pods = collection("v1", "Pod", NAMESPACE)
        for at, pod in kube.of_kind("pods"):
            ours = pod["metadata"]["name"].rpartition("-")[0] == name
            if ours and pod["metadata"]["name"] not in wanted and "deletionTimestamp" not in pod["metadata"]:
                kube.touch(at, pod | {"metadata": pod["metadata"] | {"deletionTimestamp": "now"}})
        for pod_name in wanted:
            if f"{pods}/{pod_name}" not in kube.objects and self._make_claims(pod_name, spec):
                metadata = spec["template"]["metadata"]
                labels = metadata["labels"] | {"controller-revision-hash": revision(spec["template"])}
                made = {"metadata": metadata | {"labels": labels}, "spec": _copied(spec["template"]["spec"])}
                kube.put(f"{pods}/{pod_name}", made)
        latest = revision(spec["template"])
        present = there.get("status", {}).get("currentRevision", latest)
        revisions = {
            pod["metadata"]["labels"].get("controller-revision-hash")
            for _, pod in kube.of_kind("pods")
            if pod["metadata"]["name"] in wanted
        }
        status = {
            "observedGeneration": there["metadata"]["generation"],
            "updateRevision": latest,
            "currentRevision": latest if revisions <= {latest} else present,
        }
        if there.get("status") != status:
            kube.touch(path, there | {"status": status})

    def _make_claims(self, pod: str, spec: ReadManifest) -> bool:
        """Create the claims of a pod. Returns False while a claim of that name is still being deleted."""
        kube, folder = self.kube, collection("v1", "PersistentVolumeClaim", NAMESPACE)
        for template in spec.get("volumeClaimTemplates", ()):
            path = f"{folder}/{template['metadata']['name']}-{pod}"
            there = kube.objects.get(path)
            if there is not None and "deletionTimestamp" in there["metadata"]:
                return False
            if there is None:
                labels, spec_of = template["metadata"]["labels"], {"storageClassName": STORAGE_CLASS} | template["spec"]
                kube.put(path, {"metadata": {"labels": labels}, "spec": _copied(spec_of)})
        return True

    def _schedule(self, path: str, pod: Manifest) -> None:
        """Schedule a pod to the node of its volumes; a volume is created where its pod is first scheduled."""
        kube, name = self.kube, pod["metadata"]["name"]
        claims = [
            (at, claim)
            for at, claim in kube.of_kind("persistentvolumeclaims")
            if claim["metadata"]["name"].partition("-")[2] == name
        ]
        bound = {self.node_of(claim) for _, claim in claims} - {None}
        crowd = [one["spec"].get("nodeName") for _, one in kube.of_kind("pods")]
        node = next(iter(bound)) if bound else min(sorted(self.nodes), key=crowd.count, default=None)
        if node is None or node not in self.nodes:
            return
        for at, claim in claims:
            if not claim["spec"].get("volumeName"):
                self._bind(at, claim, node)
        kube.touch(path, pod | {"spec": pod["spec"] | {"nodeName": node}})

    def _bind(self, path: str, claim: Manifest, node: str) -> None:
        volume = f"pv-{claim['metadata']['uid']}"
        rule = {"key": HOST_LABEL, "operator": "In", "values": [node]}
        terms = [{"matchExpressions": [rule]}]
        affinity = {"required": {"nodeSelectorTerms": terms}}
        spec = {"nodeAffinity": affinity, "persistentVolumeReclaimPolicy": "Delete"}
        self.kube.put(object_path("v1", "PersistentVolume", None, volume), {"spec": spec})
        size = claim["spec"]["resources"]["requests"]["storage"]
        status = {"phase": "Bound", "capacity": {"storage": size}}
        self.kube.touch(path, claim | {"spec": claim["spec"] | {"volumeName": volume}, "status": status})

    def node_of(self, claim: ReadManifest) -> str | None:
        """Return the node of a claim's volume, or None."""
        volume = claim["spec"].get("volumeName")
        if not volume:
            return None
        found = self.kube.objects[object_path("v1", "PersistentVolume", None, volume)]
        rule = found["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]
        return str(rule["values"][0])
