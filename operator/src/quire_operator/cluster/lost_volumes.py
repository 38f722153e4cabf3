"""Finds why a pod does not start: lost volumes, its last words, and what blocks it. Reads only."""

import asyncio
from collections.abc import Iterable

from quire_operator.builders import Manifest
from quire_operator.builders.naming import CONTAINER
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import object_path
from quire_operator.plan.observation import UNSCHEDULABLE

HOST_LABEL = "kubernetes.io/hostname"
MESSAGE_MAX = 1000
_NODES = "/api/v1/nodes"
_STARTING = ("ContainerCreating", "PodInitializing")


async def volumes_gone(kube: Kube, pods: list[Manifest], claims: list[Manifest]) -> dict[str, str]:
    """Return why a volume cannot come back, by claim. Only for pods without a node: others have theirs mounted."""
    homeless = {pod["metadata"]["name"] for pod in pods if not pod["spec"].get("nodeName")}
    of_them = [claim for claim in claims if claim["metadata"]["name"].partition("-")[2] in homeless]
    found = await asyncio.gather(*(_why_gone(kube, claim) for claim in of_them))
    return {claim["metadata"]["name"]: why for claim, why in zip(of_them, found, strict=True) if why is not None}


async def _why_gone(kube: Kube, claim: Manifest) -> str | None:
    """Return why the volume of a claim cannot come back; None if it can, or if the claim is not bound yet."""
    volume = claim["spec"].get("volumeName")
    if not volume:
        return None
    there = await kube.get(object_path("v1", "PersistentVolume", None, volume))
    if there is None or claim.get("status", {}).get("phase") == "Lost":
        return f"its volume {volume} no longer exists"
    hosts = hosts_of(there)
    if not hosts:
        return None
    nodes = await asyncio.gather(*(kube.list(_NODES, f"{HOST_LABEL}={host}") for host in sorted(hosts)))
    return None if any(nodes) else f"its volume is on {', '.join(sorted(hosts))}, which is not a node of the cluster"


def hosts_of(volume: Manifest) -> set[str]:
    """Return the hosts that a local volume is bound to; empty if none."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    return {
        host
        for term in required.get("nodeSelectorTerms", ())
        for rule in term.get("matchExpressions", ())
        if rule["key"] == HOST_LABEL and rule["operator"] == "In"
        for host in rule.get("values", ())
    }


def last_words(pod: Manifest) -> str | None:
    """Return why the process of a pod has exited and does not run again; None if it runs, or never exited."""
    statuses = pod.get("status", {}).get("containerStatuses", ())
    mine = next((one for one in statuses if one["name"] == CONTAINER), None)
    if mine is None or "running" in mine.get("state", {}):
        return None
    ends = (mine.get("state", {}).get("terminated"), mine.get("lastState", {}).get("terminated"))
    ended = next((one for one in ends if one), None)
    if ended is not None:
        message = _last_line(ended.get("message", "").splitlines())
        return message or f"its process exited with code {ended.get('exitCode')} ({ended.get('reason', 'no reason')})"
    waiting = mine.get("state", {}).get("waiting") or {}
    if waiting.get("reason") in (None, *_STARTING):
        return None
    return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")


def what_blocks(pod: Manifest) -> tuple[str, str] | None:
    """Return why a pod cannot run, as the reason and the message of Kubernetes; None if nothing blocks it."""
    status = pod.get("status", {})
    for one in status.get("conditions", ()):
        if one["type"] == "PodScheduled" and one["status"] == "False" and one.get("reason") == UNSCHEDULABLE:
            return UNSCHEDULABLE, str(one.get("message", ""))[:MESSAGE_MAX]
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = one.get("state", {}).get("waiting") or {}
        if waiting.get("reason") not in (None, *_STARTING):
            return str(waiting["reason"]), str(waiting.get("message", ""))[:MESSAGE_MAX]
    return None


def _last_line(lines: Iterable[str]) -> str:
    """Return the last line, which has the error of the command."""
    message = [line.strip() for line in lines if line.strip()]
    return message[-1].removeprefix("quire: ")[:1000] if message else ""
