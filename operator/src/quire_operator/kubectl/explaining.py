"""Derives from API objects why something is not ready or not safe. Pure: takes objects, returns findings.

A finding describes a problem, and the remedy if that is known. No findings means that no problem is known. A fact that
could not be determined is a finding, too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from quire_operator.builders import ReadManifest
from quire_operator.kubectl.tables import duration

_GOOD_WHEN_FALSE = frozenset(
    {
        *("Degraded", "Stalled", "WriteRejected", "PodsBlocked", "DiskPressure", "ScaleDownBlocked"),
        *("ReplaceBlocked", "NotYetServed", "BookiesUnguarded", "SlowBookie", "RolledBack"),
    }
)
_QUIET = frozenset({"Reconciling", "Quiesced", "Synced"})
"""Conditions about work that is under way, or that Ready includes: others and the operation report problems."""
EVENTS_SHOWN = 5
_REMEDIES = {
    "FullyReplicated": "auto-recovery copies them: `kubectl quire under-replicated` lists the remaining ledgers",
    "MetadataReachable": "check etcd and its NetworkPolicies; nothing is replaced meanwhile",
    "WriteRejected": "correct the field that the API server names, or the quota or webhook that rejects the object",
    "PodsBlocked": "`kubectl describe pod` has all of its events; free capacity, or correct the image or the mounts",
    "RolledBack": "correct the fields of the spec that the message points to: a changed spec is tried again",
    "DiskPressure": "raise storage.ledgers.size, or replicas",
    "SlowBookie": "replace its disk, or set slowBookies.action to Replace",
    "ScaleDownBlocked": "the message has the remedy; a drain is never forced",
    "ReplaceBlocked": "the message has what it waits for, and the annotation that skips the wait",
    "CookiesConsistent": "see the bookie's log: `kubectl logs`, and docs/bookie.md on its folders",
    "OffloadHealthy": "`kubectl quire jobs` shows the reason; `kubectl quire job logs offload` has the driver's log",
    "AnalyticsHealthy": "`kubectl quire jobs` shows the reasons; `kubectl quire job logs NAME` has the driver's log",
    "JobsHealthy": "`kubectl quire jobs` shows the reasons; `kubectl quire job logs NAME` has the driver's log",
    "PlacementSatisfied": "raise replicas in the zones that lack bookies, or lower placement.minZones",
}
_WAITING = {
    "ImagePullBackOff": "the image cannot be fetched: check spec.image and imagePullSecrets",
    "ErrImagePull": "the image cannot be fetched: check spec.image and imagePullSecrets",
    "CrashLoopBackOff": "it exits repeatedly: the reason is in its last line; `kubectl logs --previous` has the rest",
    "CreateContainerConfigError": "a ConfigMap or Secret that it mounts is missing",
}


class Severity(StrEnum):
    """The severity of a finding."""

    WRONG = "wrong"
    UNKNOWN = "unknown"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Reason:
    """One finding. `remedy` may be empty."""

    severity: Severity
    what: str
    remedy: str = ""

    def row(self) -> dict[str, str]:
        """Return the finding for JSON output."""
        return {key: str(value) for key, value in asdict(self).items()}


def _wrong(what: str, remedy: str = "") -> Reason:
    return Reason(Severity.WRONG, what, remedy)


def of_resource(resource: ReadManifest, events: Sequence[ReadManifest]) -> list[Reason]:
    """Return findings about a resource from its status."""
    status = resource.get("status") or {}
    generation = resource["metadata"].get("generation")
    if not status:
        return [
            Reason(
                Severity.UNKNOWN,
                "it has no status yet",
                "check that the operator runs: `kubectl get pods -A | grep quire-operator`",
            )
        ]
    found = []
    if generation is not None and status.get("observedGeneration") not in (None, generation):
        found.append(Reason(Severity.UNKNOWN, "the operator has not observed the latest change of its spec yet"))
    conditions = status.get("conditions", ())
    explained = {one.get("message") for one in conditions if one["type"] in _REMEDIES and _of_condition(one)} - {""}
    for condition in conditions:
        if condition["type"] in _REMEDIES or condition.get("message") not in explained:
            found += _of_condition(condition)
    for row in status.get("bookies", ()):
        if row.get("state") not in (None, "Writable"):
            why = row.get("reason") or "no reason given"
            found.append(_wrong(f"bookie {row.get('id') or '?'} in {row['pod']} is {row['state']}: {why}"))
    found += [
        _wrong(f"broker {row['pod']} does not respond") for row in status.get("brokers", ()) if not row.get("ready")
    ]
    derived = status.get("derivedSettings") or {}
    if derived:
        text = ", ".join(f"{key} = {value}" for key, value in sorted(derived.items()))
        found.append(Reason(Severity.NOTE, f"settings that follow from the limits of its pods: {text}"))
    operation = status.get("operation")
    if operation:
        text = f"{operation['type']} is in progress, at {operation['step']} since {operation.get('stepStartedAt', '?')}"
        found.append(Reason(Severity.NOTE, text + (f": {operation['message']}" if operation.get("message") else "")))
    drain = status.get("drain")
    if drain:
        text = (
            f"broker {drain['pod']} hands over its bundles since {drain['startedAt']}: {drain.get('bundles', 0)} left"
        )
        found.append(Reason(Severity.NOTE, text + (f"; {drain['message']}" if drain.get("message") else "")))
    return found + _of_events(events)


def _of_condition(condition: ReadManifest) -> list[Reason]:
    kind, status = condition["type"], condition["status"]
    text = f"{kind} is {status} ({condition.get('reason', '?')}): {condition.get('message') or 'no message'}"
    if kind in _QUIET:
        return []
    if status == "Unknown":
        return [Reason(Severity.UNKNOWN, text, _REMEDIES.get(kind, ""))]
    good = "False" if kind in _GOOD_WHEN_FALSE else "True"
    return [] if status == good else [_wrong(text, _REMEDIES.get(kind, ""))]


def of_pod(pod: ReadManifest, events: Sequence[ReadManifest], state: Any = None) -> list[Reason]:
    """Return findings about a Quire pod from its status. `state`: the state its bookie reports, if it responds."""
    status = pod.get("status") or {}
    found: list[Reason] = []
    if pod["metadata"].get("deletionTimestamp"):
        found.append(Reason(Severity.NOTE, "it is being deleted"))
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            text = f"it cannot be scheduled: {condition.get('message', '')}"
            found.append(_wrong(text, "free capacity on the nodes, or change placement"))
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        found += _of_container(container)
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))
    if not ready and not found:
        found.append(_wrong(f"it is not ready (phase {status.get('phase', 'unknown')})"))
    if isinstance(state, dict):
        found += _of_bookie(state)
    return found + _of_events(events)


def _of_container(container: ReadManifest) -> list[Reason]:
    name, state = container["name"], container.get("state") or {}
    found = []
    waiting = state.get("waiting")
    if waiting and waiting.get("reason") not in ("PodInitializing", "ContainerCreating"):
        text = f"container {name} waits: {waiting.get('reason')} {waiting.get('message', '')}".strip()
        found.append(_wrong(text, _WAITING.get(str(waiting.get("reason")), "")))
    ended = (container.get("lastState") or {}).get("terminated") or state.get("terminated")
    if ended and ended.get("exitCode") != 0:
        why = ((ended.get("message") or "").strip() or ended.get("reason") or "no message").splitlines()[-1]
        remedy = "raise resources.limits.memory" if ended.get("reason") == "OOMKilled" else ""
        restarts = container.get("restartCount", 0)
        text = f"container {name} exited with code {ended.get('exitCode')} ({restarts} restarts): {why}"
        found.append(_wrong(text, remedy))
    return found


def _of_bookie(state: dict[str, Any]) -> list[Reason]:
    found = []
    if not state.get("running"):
        found.append(_wrong("its bookie does not serve"))
    if state.get("readOnly"):
        reasons = ", ".join(state.get("readOnlyReasons", ())) or "no reason given"
        found.append(
            _wrong(
                f"its bookie is read-only: {reasons}",
                "it becomes writable once the reason is resolved; `kubectl quire undrain` cancels a drain",
            )
        )
    if state.get("inLimbo"):
        found.append(
            _wrong(
                "its bookie is in limbo: it is unknown which entries it lost until it is recovered",
                "auto-recovery ends it; see docs/bookie.md",
            )
        )
    return found


def of_ledger(
    ledger: ReadManifest, marked: Iterable[str], registered: Iterable[str], unrecoverable: str | None
) -> list[Reason]:
    """Return findings about a ledger from its metadata, the replicas marked as missing, and the registered bookies."""
    there = frozenset(registered)
    found = [
        _wrong(f"its replica on {bookie} is marked as missing or incomplete", _REMEDIES["FullyReplicated"])
        for bookie in marked
    ]
    copies, wanted = ledger.get("writeQuorum") or 0, ledger.get("wantedCopies") or 0
    if wanted > copies:
        text = f"it has {copies} of {wanted} copies: it was created while too few bookies were writable"
        found.append(_wrong(text, "auto-recovery adds the others once it is closed and enough bookies are writable"))
    for segment in ledger.get("segments", ()):
        away = [bookie for bookie in segment["ensemble"] if bookie not in there]
        if away:
            left = len(segment["ensemble"]) - len(away)
            first = segment["firstEntry"]
            text = f"from entry {first} on, {', '.join(away)} not registered; {left} of its bookies are"
            found.append(_wrong(text, "start these bookies, or let auto-recovery copy from the others"))
    if unrecoverable is not None:
        text = f"it has entries that no replica can serve: {unrecoverable}"
        found.append(_wrong(text, "restore a bookie that had them"))
    if ledger.get("state") != "CLOSED":
        found.append(Reason(Severity.NOTE, f"it is {ledger.get('state')}: its writer, or a recovery, will close it"))
    return found


def of_topic(stats: ReadManifest, internal: ReadManifest | None) -> list[Reason]:
    """Return findings about a topic from the statistics of its broker."""
    found = []
    for name, subscription in sorted((stats.get("subscriptions") or {}).items()):
        backlog, consumers = subscription.get("msgBacklog", 0), len(subscription.get("consumers", ()))
        if backlog and not consumers:
            found.append(
                _wrong(f"subscription {name} has a backlog of {backlog} and no consumer", "start one, or delete it")
            )
        elif subscription.get("blockedSubscriptionOnUnackedMsgs"):
            found.append(
                _wrong(f"subscription {name} waits for acknowledgements", "check why its consumers do not acknowledge")
            )
        elif backlog:
            found.append(
                Reason(Severity.NOTE, f"subscription {name} has a backlog of {backlog}, {consumers} consumers")
            )
    state = (internal or {}).get("state")
    if state not in (None, "LedgerOpened", "ClosedLedger"):
        found.append(_wrong(f"its managed ledger is {state}"))
    return found


def _of_events(events: Sequence[ReadManifest]) -> list[Reason]:
    """Return the latest warnings, newest first."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    warnings.sort(key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), reverse=True)
    return [
        Reason(Severity.NOTE, f"event {event.get('reason')}: {event.get('message', '')} ({_times(event)})")
        for event in warnings[:EVENTS_SHOWN]
    ]


def _times(event: ReadManifest) -> str:
    count = event.get("count") or 1
    return f"{count} times" if count > 1 else "once"


def drain_line(found: ReadManifest) -> str:
    """Return the progress of a drain in one line."""
    if "ledgers_left" not in found:
        return f"{found['state']}: the auditor has not checked it yet"
    text = f"{found['state']}: {found['ledgers_left']} of {found['ledgers_first']} ledgers left"
    if found.get("bytes_first"):
        text += f", {100 - 100 * found['bytes_left'] // found['bytes_first']} % of the bytes copied"
    return text + (f", about {duration(found['eta_s'])} left" if found.get("eta_s") else "")
