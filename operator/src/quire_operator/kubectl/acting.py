"""The commands drain, undrain and explain. The auditor performs drains, and continues without the command."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from quire_operator.builders.naming import BOOKIE
from quire_operator.errors import KubeError, OperatorError, UnreachableError
from quire_operator.kubectl import explaining, finding
from quire_operator.kubectl.access import Cluster
from quire_operator.kubectl.explaining import Reason
from quire_operator.kubectl.showing import ask_topic
from quire_operator.kubectl.terminal import on_one_line

POLL_S = 2.0
Say = Callable[[str], None]
_DRAINS = "/api/v1/quire/drains"


def _path(bookie: str) -> str:
    return f"{_DRAINS}/{quote(bookie, safe='')}"


async def drain(cluster: Cluster, name: str, say: Say, *, wait: bool, poll_s: float = POLL_S) -> tuple[Any, str]:
    """Start the drain of a bookie and report its progress. Raises OperatorError."""
    bookie = await finding.bookie_id(cluster, name)
    found = finding.expect(await finding.ask_cluster(cluster, _path(bookie), method="PUT", body={"wish": "drain"}))
    shown = ""
    while wait and found.get("wish") not in (None, "cancel") and found.get("state") != "emptied":
        line = explaining.drain_line(found)
        blocked = "; ".join(found.get("blocked_by") or ())
        line += f" (waits: {blocked})" if blocked else ""
        if line != shown:
            say(line)
            shown = line
        await asyncio.sleep(poll_s)
        found = finding.expect(await finding.ask_cluster(cluster, _path(bookie)))
    if found.get("state") == "emptied":
        text = f"all ledgers of bookie {bookie} were copied and verified; `undrain` makes it writable again"
    elif found.get("wish") in (None, "cancel"):
        text = f"the drain of bookie {bookie} was cancelled"
    else:
        text = f"bookie {bookie}: {explaining.drain_line(found)}; the drain continues in the background"
    return found, text


async def undrain(cluster: Cluster, name: str) -> tuple[Any, str]:
    """Cancel the drain of a bookie. Raises OperatorError."""
    bookie = await finding.bookie_id(cluster, name)
    found = finding.expect(await finding.ask_cluster(cluster, _path(bookie), method="DELETE"))
    return found, f"the drain of bookie {bookie} is cancelled; copies on other bookies stay"


async def explain(cluster: Cluster, name: str) -> tuple[Any, str]:
    """Explain why a pod, ledger, topic or resource is not ready or not safe. OperatorError if it does not exist."""
    what, reasons = await _explained(cluster, name)
    rows = {"what": what, "findings": [reason.row() for reason in reasons]}
    lines = [f"{what}:" if reasons else f"{what}: no problems found"]
    for reason in reasons:
        remedy = f"\n           -> {on_one_line(reason.remedy)}" if reason.remedy else ""
        lines.append(f"  {reason.severity:<8} {on_one_line(reason.what)}{remedy}")
    return rows, "\n".join(lines)


async def _explained(cluster: Cluster, name: str) -> tuple[str, list[Reason]]:
    if name.isdigit() or name.startswith("ledger/"):
        return await _ledger(cluster, int(name.removeprefix("ledger/")))
    if "://" in name or name.count("/") == 2:
        stats, internal = await ask_topic(cluster, name, "stats"), await ask_topic(cluster, name, "internalStats")
        return f"topic {name}", explaining.of_topic(stats, internal)
    found = await finding.resource(cluster, name) if not name.startswith("pod/") else None
    if found is not None:
        events = await finding.events_of(cluster, found["kind"], found["metadata"]["name"])
        return f"{found['kind']} {name.rpartition('/')[2]}", explaining.of_resource(found, events)
    pod = await finding.pod(cluster, name)
    if pod is None:
        raise OperatorError(
            f"{name} not found: give a pod, Bookie or ManagedLedger of namespace {cluster.namespace}, a ledger id or "
            "a topic"
        )
    return await _pod(cluster, pod)


async def _pod(cluster: Cluster, pod: Any) -> tuple[str, list[Reason]]:
    name = pod["metadata"]["name"]
    state: Any = None
    reasons: list[Reason] = []
    if finding.part_of(pod) == BOOKIE and (pod.get("status") or {}).get("phase") == "Running":
        try:
            response = await cluster.ask_pod(pod, "/api/v1/bookie/state")
            state = response.body if response.status == 200 else None
            if state is None:
                reasons.append(
                    Reason(explaining.Severity.UNKNOWN, f"its bookie returned {finding.reason_of(response)}")
                )
        except (KubeError, UnreachableError) as error:
            reasons.append(Reason(explaining.Severity.UNKNOWN, f"could not query its bookie: {error}"))
    events = await finding.events_of(cluster, "Pod", name)
    return f"pod {name}", explaining.of_pod(pod, events, state) + reasons


async def _ledger(cluster: Cluster, ledger: int) -> tuple[str, list[Reason]]:
    found = finding.expect(await finding.ask_cluster(cluster, f"/admin/quire/ledgers/{ledger}"))
    marks = await finding.ask_cluster(
        cluster, "/api/v1/autorecovery/list_under_replicated_ledger?print_missing_replica=true"
    )
    marked = [] if marks.status == 404 else finding.expect(marks).get(str(ledger), [])
    registered: set[str] = set()
    for kind in ("rw", "ro"):
        registered |= set(
            finding.expect(await finding.ask_cluster(cluster, f"/api/v1/bookie/list_bookies?type={kind}"))
        )
    lost = finding.expect(await finding.ask_cluster(cluster, "/api/v1/quire/unrecoverable"))
    why = next((one["reason"] for one in lost if one["ledger"] == ledger), None)
    return f"ledger {ledger}", explaining.of_ledger(found, marked, registered, why)
