"""Collects the evidence of a failure in a folder: resources, events and logs of the test's namespace."""

import json
import subprocess
from pathlib import Path
from urllib.error import HTTPError

from tests.e2e.kube import Cluster, Manifest

KINDS = (
    ("v1", "Pod"),
    ("v1", "Event"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "Deployment"),
    ("batch/v1", "Job"),
    ("policy/v1", "PodDisruptionBudget"),
    ("coordination.k8s.io/v1", "Lease"),
    ("quire.dev/v1alpha1", "Bookie"),
    ("quire.dev/v1alpha1", "ManagedLedger"),
)


def collect(folder: Path, cluster: Cluster) -> None:
    """Collect the evidence, ignoring errors: an unreachable cluster must not hide the failure of the test."""
    folder.mkdir(parents=True, exist_ok=True)
    for api_version, kind in KINDS:
        try:
            found = cluster.items(api_version, kind)
        except (AssertionError, OSError) as error:
            (folder / f"{kind}.failed").write_text(str(error))
            continue
        if kind == "Event":
            (folder / "events.txt").write_text("\n".join(sorted(map(_line, found))) + "\n")
        (folder / f"{kind}.json").write_text(json.dumps(found, indent=1, sort_keys=True))
    for pod in _quietly(cluster):
        _logs(cluster, pod, folder)
    nodes = subprocess.run(["docker", "ps", "-a"], capture_output=True, text=True, check=False)
    (folder / "docker-ps.txt").write_text(nodes.stdout)


def _quietly(cluster: Cluster) -> list[Manifest]:
    try:
        return cluster.pods()
    except (AssertionError, OSError):
        return []


def _line(event: Manifest) -> str:
    about = event["involvedObject"]
    when = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return f"{when} {event['type']} {about['kind']}/{about['name']} {event['reason']}: {event.get('message', '')}"


def _logs(cluster: Cluster, pod: Manifest, folder: Path) -> None:
    name = pod["metadata"]["name"]
    for container in pod["spec"]["containers"]:
        for previous in (False, True):
            try:
                text = cluster.logs(name, container["name"], previous)
            except (HTTPError, OSError) as error:
                text = f"({error})"
                if previous:
                    continue
            (folder / f"{name}.{container['name']}{'.previous' if previous else ''}.log").write_text(text)
