"""Collects a support bundle: resources, pods, events and logs of a namespace, redacted. Never reads a Secret."""

import io
import tarfile
from collections.abc import Callable
from typing import Any

from quire_operator.api import API_VERSION
from quire_operator.api.declared import DECLARED_KINDS
from quire_operator.builders.naming import BOOKIE
from quire_operator.cluster.paths import collection
from quire_operator.errors import OperatorError
from quire_operator.kubectl import finding, jobs
from quire_operator.kubectl.access import Cluster
from quire_operator.kubectl.redaction import clean_json, clean_text

LOG_LINES = 5000
_KINDS = (
    *((API_VERSION, "Bookie"), (API_VERSION, "ManagedLedger"), *((API_VERSION, kind) for kind in DECLARED_KINDS)),
    *(("apps/v1", "StatefulSet"), ("apps/v1", "Deployment"), ("v1", "Pod"), ("v1", "Service"), ("v1", "ConfigMap")),
    *(("v1", "PersistentVolumeClaim"), ("policy/v1", "PodDisruptionBudget"), ("batch/v1", "Job"), ("v1", "Event")),
)
_SELECTORS = {
    "Bookie": "",
    "ManagedLedger": "",
    **dict.fromkeys(DECLARED_KINDS, ""),
    "Event": "",
    # Claims have only the labels of the StatefulSet's claim template, which is immutable.
    "PersistentVolumeClaim": "app.kubernetes.io/name in (quire-bookie, quire-etcd)",
}
"""Label selectors for kinds that are not found by the managed-by label."""
_ASKED = {
    "state": "/api/v1/bookie/state",
    "gc": "/api/v1/bookie/gc_details",
    "drains": "/api/v1/quire/drains",
    "under-replicated": "/api/v1/autorecovery/list_under_replicated_ledger?print_missing_replica=true",
    "metrics": "/metrics",
}


async def collect(cluster: Cluster, say: Callable[[str], None], *, log_lines: int = LOG_LINES) -> dict[str, str]:
    """Return the files of the bundle by name. Read errors are listed in `problems.txt` and do not stop it."""
    files: dict[str, str] = {}
    problems: list[str] = []
    pods: list[Any] = []
    for version, kind in _KINDS:
        try:
            selector = _SELECTORS.get(kind, finding.OURS)
            found = await cluster.list(collection(version, kind, cluster.namespace), selector)
        except OperatorError as error:
            problems.append(f"{kind}: {error}")
            continue
        say(f"{len(found)} x {kind}")
        if kind == "Pod":
            pods = found
        for one in found:
            whole: dict[str, Any] = {"apiVersion": version, "kind": kind} | one
            files[f"{kind.lower()}/{one['metadata']['name']}.json"] = clean_json(whole)
    for pod in pods:
        await _pod(cluster, pod, files, problems, log_lines)
        say(f"logs and state of {pod['metadata']['name']}")
    files["runs.json"] = clean_json(jobs.runs_of(pods))
    files["problems.txt"] = clean_text("\n".join(problems) + "\n") if problems else "none\n"
    return files


async def _pod(cluster: Cluster, pod: Any, files: dict[str, str], problems: list[str], log_lines: int) -> None:
    name = pod["metadata"]["name"]
    for container in pod["spec"].get("containers", ()):
        for previous in (False, True):
            try:
                text = await cluster.log_of(
                    cluster.namespace, name, container["name"], lines=log_lines, previous=previous
                )
            except OperatorError as error:
                problems.append(f"log of {name}: {error}")
                continue
            if text:
                suffix = "-previous" if previous else ""
                files[f"logs/{name}-{container['name']}{suffix}.log"] = clean_text(text)
    if finding.part_of(pod) != BOOKIE:
        return
    for what, path in _ASKED.items():
        try:
            response = await cluster.ask_pod(pod, path)
        except OperatorError as error:
            problems.append(f"{what} of {name}: {error}")
            return  # the other requests would fail in the same way
        text = response.body if isinstance(response.body, str) else None
        files[f"bookies/{name}/{what}.txt" if text is not None else f"bookies/{name}/{what}.json"] = (
            clean_text(text) if text is not None else clean_json(response.body)
        )


def archive(files: dict[str, str]) -> bytes:
    """Return the files as a gzipped tar, in a deterministic order."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name, text in sorted(files.items()):
            data = text.encode()
            info = tarfile.TarInfo(f"quire-report/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return held.getvalue()
