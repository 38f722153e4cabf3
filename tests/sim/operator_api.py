"""A simulated API server with what the operator uses of it, and the controllers behind it. Objects are dicts by path.

The operator's production code talks to it through the methods of `Kube`. Before and after any write the operator may be
killed, and any read may be late; a status may meet a conflict. Controllers: StatefulSet, claims and local volumes,
scheduler, collection of pods whose node is gone. Pods start and stop simulated bookies through `on_pod_*`.
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
"""Of claims that name none."""
HOST_LABEL, ZONE_LABEL = "kubernetes.io/hostname", "topology.kubernetes.io/zone"


Objects = list[tuple[str, Manifest]]
"""Paths and what is there."""


class OperatorKilledError(Exception):
    """The operator's process ended here."""


T = TypeVar("T")


def _copied(thing: T) -> T:
    """All the way down; a quarter of `copy.deepcopy`'s time, which was most of a run's."""
    return cast(T, pickle.loads(pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)))


@dataclass
class SimKube:
    """What the API server keeps."""

    chance: random.Random
    objects: dict[str, Manifest] = field(default_factory=dict)
    kill_at: int = -1
    """The operator is killed around this write, counted over all of them."""
    kill_before: bool | None = None
    """Before it happens, or after it; None: by its number."""
    writes: int = 0
    conflict_chance: float = 0.0
    shrinking: Callable[[int, int], None] = lambda before, after: None
    """Called before the StatefulSet is given fewer pods."""
    releasing: Callable[[Manifest], None] = lambda claim: None
    """Called before a claim is deleted."""
    recording: Callable[[Manifest, Manifest], None] = lambda before, after: None
    """Called with two states of a resource before the second is written."""
    creating: Callable[[str], None] = lambda path: None
    """Called before an object is made under a name that its maker chose."""
    _numbers: int = 0

    # What the operator calls.

    async def get(self, path: str) -> Manifest | None:
        await self._travel()
        return _copied(self.objects.get(path))

    async def list(self, path: str, selector: str = "") -> list[Manifest]:
        await self._travel()
        kind = path.rsplit("/", 1)[-1]
        # Of all namespaces there is one.
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
                assert before.get("volumeClaimTemplates") == after.get("volumeClaimTemplates"), "they are immutable"
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
                    self.touch(path, self._present(path))  # somebody labelled it meanwhile
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
                raise ConflictError(409, f"{at}: there is one")
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
                assert orphan, "its pods would go with it"
                self.touch(path, there | {"metadata": there["metadata"] | {"deletionTimestamp": "now"}})
                return
            if kind == "jobs":
                del self.objects[path]  # its pods are collected
                return
            assert kind in ("pods", "persistentvolumeclaims"), path
            if kind == "persistentvolumeclaims" and "deletionTimestamp" not in there["metadata"]:
                self.releasing(there)
            # Controllers take it away: a pod once its process has ended, a claim once no pod holds it.
            self.touch(path, there | {"metadata": there["metadata"] | {"deletionTimestamp": "now", "forced": force}})

    # What the world does.

    def put(self, path: str, manifest: ReadManifest) -> Manifest:
        """A new object."""
        self._numbers += 1
        metadata = {"namespace": NAMESPACE, "generation": 1, "name": path.rsplit("/", 1)[-1]}
        made = _copied(dict(manifest))
        made["metadata"] = metadata | made.get("metadata", {}) | {"uid": f"u{self._numbers}"}
        return self.touch(path, made)

    def touch(self, path: str, changed: Manifest) -> Manifest:
        """Another version of it."""
        self._numbers += 1
        self.objects[path] = changed | {
            "metadata": changed["metadata"] | {"resourceVersion": str(self._numbers)},
        }
        return self.objects[path]

    def of_kind(self, plural: str) -> Objects:
        """Paths and objects."""
        return [(path, one) for path, one in sorted(self.objects.items()) if path.rsplit("/", 2)[-2] == plural]

    def _present(self, path: str) -> Manifest:
        if path not in self.objects:
            raise KubeError(404, f"{path}: there is none")
        return self.objects[path]

    def _expect(self, path: str, manifest: ReadManifest) -> None:
        if manifest["metadata"]["resourceVersion"] != self._present(path)["metadata"]["resourceVersion"]:
            raise ConflictError(409, f"{path}: it has changed")

    async def _travel(self) -> None:
        await asyncio.sleep(self.chance.uniform(0.0, 0.02))

    def write(self, *, counts: bool = True) -> "_Write":
        """Around whatever changes something. `counts`: the operator may be killed there."""
        return _Write(self, counts)


@dataclass
class _Write:
    """One write: the operator may end before it, or after it without learning that it happened."""

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


def _merged(there: Manifest, patch: ReadManifest) -> Manifest:
    found = dict(there)
    for key, value in patch.items():
        found[key] = _merged(found.get(key) or {}, value) if isinstance(value, dict) else _copied(value)
    return found


def revision(template: ReadManifest) -> str:
    """What tells templates apart."""
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


@dataclass
class Controllers:
    """What Kubernetes does by itself. One call is one look of each."""

    kube: SimKube
    nodes: dict[str, str]
    """Zone by node."""

    def add_node(self, name: str, zone: str) -> None:
        """A machine."""
        self.nodes[name] = zone
        labels = {HOST_LABEL: name, ZONE_LABEL: zone}
        self.kube.put(f"/api/v1/nodes/{name}", {"metadata": {"labels": labels}})

    def add_storage_class(self) -> None:
        """The default one, whose volumes can grow."""
        made = {"metadata": {}, "allowVolumeExpansion": True}
        self.kube.put(f"/apis/storage.k8s.io/v1/storageclasses/{STORAGE_CLASS}", made)

    def remove_node(self, name: str) -> None:
        """It is gone, and so are its pods."""
        del self.nodes[name], self.kube.objects[f"/api/v1/nodes/{name}"]
        for path, pod in self.kube.of_kind("pods"):
            if pod["spec"].get("nodeName") == name:
                del self.kube.objects[path]

    def look(self) -> None:
        """All of them."""
        self._claims()
        for path, there in self.kube.of_kind("statefulsets"):
            self._stateful_set(path, there)
        for path, pod in self.kube.of_kind("pods"):
            if "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName"):
                del self.kube.objects[path]  # nothing of it runs anywhere
            elif not pod["spec"].get("nodeName"):
                self._schedule(path, pod)

    def collect(self, pods: str) -> None:
        """The owner is gone: so are its StatefulSets, and their pods end. `pods`: how their names begin."""
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
                if claim["status"]["capacity"]["storage"] != size:  # grown while it is used
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
        status = {
            "observedGeneration": there["metadata"]["generation"],
            "updateRevision": revision(spec["template"]),
        }
        if there.get("status") != status:
            kube.touch(path, there | {"status": status})

    def _make_claims(self, pod: str, spec: ReadManifest) -> bool:
        """False while one of that name still goes."""
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
        """To the node of its volumes; volumes are made where a pod is first scheduled."""
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
        """Where its volume is."""
        volume = claim["spec"].get("volumeName")
        if not volume:
            return None
        found = self.kube.objects[object_path("v1", "PersistentVolume", None, volume)]
        rule = found["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0]
        return str(rule["values"][0])
