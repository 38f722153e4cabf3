"""Derives the phase and the conditions of a `Bookie`, with reasons, from one observation. Pure.

If a fact could not be observed, the condition is Unknown; it never repeats an earlier value. `Reconciling` and
`Stalled` are those of kstatus, by which Flux, Argo CD and kpt judge a resource. `judged` computes all of them together,
so that these invariants hold (the table of `test_conditions_agree` enumerates them):

* Ready=True implies Writable=True, Degraded=False, Stalled=False, WriteRejected=False and PodsBlocked=False.
* Ready is not True implies Reconciling=True or Stalled=True, unless the pool is paused.
* Reconciling=True and Stalled=True exclude each other, and so do Stalled=True and Quiesced=True.
* The phase Running implies Ready=True; the phase Degraded implies Degraded=True.
* Each condition, like the status, names the generation that was observed.
"""

from dataclasses import dataclass

from quire_operator.api.bookie import BookieState, BookieStatusRow, Capacity, Phase
from quire_operator.api.conditions import Finding, Truth
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.api.slow_bookies import SlowBookie
from quire_operator.plan import expand, metadata_target, rejections, replace, roll, slow, zones
from quire_operator.plan.observation import PoolObservation

METADATA_SILENT = "the metadata store is unreachable, or no bookie and no auto-recovery pod responds"


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of the plan that the conditions need in addition to the observation."""

    operation: Operation | None
    """The operation in progress after this reconciliation."""
    faults: tuple[str, ...] = ()
    not_served: tuple[str, ...] = ()
    scale_down_blocker: tuple[str, str] | None = None
    expansion_blocker: str | None = None
    work_left: bool = False
    """Part of the desired state does not exist yet."""
    deletion_held: str | None = None
    """Why the resource cannot be deleted yet."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The phase and all conditions, which never contradict each other."""

    phase: Phase
    conditions: tuple[Finding, ...]


def judged(
    observed: PoolObservation,
    rows: tuple[BookieStatusRow, ...],
    slow_rows: tuple[SlowBookie, ...],
    space: Capacity | None,
    at: Decisions,
) -> Judgement:
    """Return the phase and all conditions."""
    writable, blocked = _writable(observed, rows), rejections.blocked(observed.pods, observed.stateful_set)
    degraded, stalled = _degraded(observed, rows, blocked, at), _stalled(observed, at)
    ready = _ready(observed, writable, degraded, at)
    found = [
        ready,
        writable,
        degraded,
        _reconciling(observed, ready, stalled, at),
        stalled,
        rejections.rejected(observed.rejected),
        blocked,
        _metadata(observed),
        _replicated(observed),
        _placement(observed, rows),
        _disk(observed, rows, space),
        _scale_down(at),
        _replace(observed),
        _cookies(observed, rows),
        slow.finding(observed, slow_rows),
        _quiesced(stalled, at),
    ]
    if at.not_served:
        fields = ", ".join(at.not_served)
        found.append(Finding(type="NotYetServed", status=Truth.TRUE, reason="FieldsWithoutEffect", message=fields))
    return Judgement(_phase(observed, rows, ready, degraded, at), tuple(found))


def _phase(
    observed: PoolObservation, rows: tuple[BookieStatusRow, ...], ready: Finding, degraded: Finding, at: Decisions
) -> Phase:
    """Return the state in one word; the one that needs attention first wins."""
    resource = observed.resource
    if resource.meta.deletion_timestamp is not None:
        return Phase.DELETING
    if at.faults:
        return Phase.INVALID
    if resource.spec.paused:
        return Phase.PAUSED
    if at.operation is not None:
        during = {
            OperationType.DRAIN: Phase.SCALING,
            OperationType.ROLL: Phase.UPDATING,
            OperationType.REPLACE: Phase.REPLACING,
        }
        return during.get(at.operation.type, Phase.EXPANDING)
    lacking = sum(row.state is BookieState.WRITABLE for row in rows) < resource.spec.replicas
    if observed.stateful_set is None or (not observed.known_ids and lacking):
        return Phase.CREATING
    if degraded.status is Truth.TRUE:
        return Phase.DEGRADED
    return Phase.CREATING if lacking or ready.status is not Truth.TRUE else Phase.RUNNING


def finding(kind: str, holds: bool | None, yes: str, no: str, message: str = "") -> Finding:
    """Return a condition that is True, False or Unknown, with the matching reason."""
    if holds is None:
        return Finding(type=kind, status=Truth.UNKNOWN, reason="NotKnown", message=message)
    return Finding(type=kind, status=Truth.TRUE if holds else Truth.FALSE, reason=yes if holds else no, message=message)


def _writable(observed: PoolObservation, rows: tuple[BookieStatusRow, ...]) -> Finding:
    """Check for enough writable bookies for the largest ensemble that is declared on them."""
    wanted = observed.resource.spec.replicas
    writable = sum(row.state is BookieState.WRITABLE for row in rows)
    needed = min(wanted, max((namespace.ensemble for namespace in observed.namespaces), default=wanted))
    message = f"{writable} of {wanted} bookies are writable"
    enough = writable >= needed
    return finding(
        "Writable", enough, "EnoughBookies", "TooFewBookies", message if enough else f"{message}, {needed} are needed"
    )


def _ready(observed: PoolObservation, writable: Finding, degraded: Finding, at: Decisions) -> Finding:
    """Check that the pool serves with the redundancy that its spec declares. The most urgent reason wins."""
    if at.faults:
        return finding("Ready", False, "", "InvalidSpec", "; ".join(at.faults))
    if at.deletion_held is not None:
        return finding("Ready", False, "", "DeletionHeld", at.deletion_held)
    if observed.rejected is not None:
        return finding("Ready", False, "", observed.rejected.reason, observed.rejected.message)
    if writable.status is Truth.FALSE:
        message = "; ".join(filter(None, [writable.message, degraded.message]))
        return finding("Ready", False, "", "TooFewWritable", message)
    if degraded.status is Truth.TRUE:
        return finding("Ready", False, "", degraded.reason, degraded.message)
    return finding("Ready", True, "Serving", "", writable.message)


def _stalled(observed: PoolObservation, at: Decisions) -> Finding:
    """Check for problems that need a change by an administrator, with the reason of the first."""
    operation = at.operation
    if at.faults:
        return finding("Stalled", True, "InvalidSpec", "", "; ".join(at.faults))
    if observed.rejected is not None:
        return finding("Stalled", True, observed.rejected.reason, "", observed.rejected.message)
    if observed.resource.spec.paused:
        return finding("Stalled", False, "", "Paused")
    blocked = metadata_target.blocker(observed.target)
    if blocked is not None:
        return finding("Stalled", True, blocked[0], "", blocked[1])
    if at.expansion_blocker is not None:
        return finding("Stalled", True, "VolumesCannotGrow", "", at.expansion_blocker)
    if operation is not None and _is_stuck(operation, observed):
        return finding("Stalled", True, "Stuck", "", _stuck(operation, observed))
    return finding("Stalled", False, "", "NotStalled")


def _is_stuck(operation: Operation, observed: PoolObservation) -> bool:
    waits = operation.step in (Step.SETTLING, Step.REPLACING, Step.REJOINING)
    return waits and roll.is_stuck(operation, observed)


def _stuck(operation: Operation, observed: PoolObservation) -> str:
    """Return where the operation stands, what its pod said, and the remedy."""
    pod = observed.pod(operation.pod or "")
    blocked = None if pod is None or pod.blocked is None else ": ".join(filter(None, pod.blocked))
    said = None if pod is None else pod.failure or blocked
    rolls = operation.type is OperationType.ROLL
    remedy = "no other pod is replaced; correct the spec, or restore its former value" if rolls else None
    return "; ".join(filter(None, [_progress(operation), said, remedy]))


def _progress(operation: Operation) -> str:
    return f"{operation.type.value}: {operation.step.value}" + (f", {operation.message}" if operation.message else "")


def _reconciling(observed: PoolObservation, ready: Finding, stalled: Finding, at: Decisions) -> Finding:
    """Check whether the operator or the cluster still works towards the spec."""
    if stalled.status is Truth.TRUE:
        return finding("Reconciling", False, "", "Stalled")
    if observed.resource.spec.paused:
        return finding("Reconciling", False, "", "Paused", "spec.paused is set: no changes are made")
    if at.operation is not None:
        return finding("Reconciling", True, at.operation.type.value, "", _progress(at.operation))
    if at.work_left:
        return finding("Reconciling", True, "Creating", "", ready.message)
    growth = expand.progress(observed)
    if growth is not None:
        return finding("Reconciling", True, expand.GROWING, "", growth)
    return finding("Reconciling", ready.status is not Truth.TRUE, ready.reason, "NothingToDo", ready.message)


def _degraded(observed: PoolObservation, rows: tuple[BookieStatusRow, ...], blocked: Finding, at: Decisions) -> Finding:
    """Check for everything that makes the pool less than its spec declares, with the reason of the first."""
    gone, ended_by_us = (BookieState.UNREACHABLE, BookieState.LOST, BookieState.FAILING), _ended_by_us(observed, at)
    away = [
        row.pod
        for row in rows
        if row.state in gone and (row.pod != ended_by_us or row.state is not BookieState.UNREACHABLE)
    ]
    problems: list[tuple[str, str]] = []
    if observed.cluster is not None and observed.cluster.unaccepted:
        message = f"{observed.cluster.unaccepted} ledgers have entries that no replica can serve"
        problems.append(("LedgersUnreadable", message))
    if observed.rejected is not None:
        problems.append((observed.rejected.reason, observed.rejected.message))
    if blocked.status is Truth.TRUE:
        problems.append((blocked.reason, blocked.message))
    problems += filter(None, [metadata_target.blocker(observed.target)])
    lost = zones.lost_zone(observed)
    if lost is not None:
        problems.append((zones.REASON, lost.message))
    if away:
        problems.append(("BookiesAway", f"{', '.join(away)} cannot be reached"))
    problems += [("BookiesAway", f"{row.pod}: {row.reason}") for row in rows if row.state is BookieState.FAILING]
    read_only = [f"{row.pod}: {row.reason}" for row in rows if row.state is BookieState.READ_ONLY]
    problems += [("BookiesReadOnly", f"read-only: {', '.join(read_only)}")] if read_only else []
    # A drain marks the ledgers that it copies; the bookie still serves them.
    drains = at.operation is not None and at.operation.type is OperationType.DRAIN
    if observed.cluster is not None and observed.cluster.under_replicated and not drains:
        message = f"{observed.cluster.under_replicated} ledgers are under-replicated"
        problems.append(("LedgersLackReplicas", message))
    if at.expansion_blocker is not None:
        problems.append(("VolumesCannotGrow", at.expansion_blocker))
    if at.operation is not None and _is_stuck(at.operation, observed):
        problems.append(("Stuck", _stuck(at.operation, observed)))
    reason = problems[0][0] if problems else ""
    message = "; ".join(dict.fromkeys(text for _, text in problems))
    return finding("Degraded", bool(problems), reason, "Well", message)


def _ended_by_us(observed: PoolObservation, at: Decisions) -> str | None:
    """Return the pod that an operation has stopped: the pool is not degraded by it until the step takes too long."""
    operation = at.operation
    if operation is None or operation.step not in (Step.REPLACING, Step.SETTLING, Step.SHRINKING):
        return None
    return None if roll.is_stuck(operation, observed) else operation.pod


def _metadata(observed: PoolObservation) -> Finding:
    if observed.cluster is None and not observed.bookies and not observed.recovery_ready:
        return finding("MetadataReachable", None, "", "", METADATA_SILENT)
    return finding(
        "MetadataReachable",
        observed.cluster is not None,
        "Answers",
        "NoAnswer",
        "" if observed.cluster else METADATA_SILENT,
    )


def _replicated(observed: PoolObservation) -> Finding:
    if observed.cluster is None:
        return finding("FullyReplicated", None, "", "", METADATA_SILENT)
    lacking, gone = observed.cluster.under_replicated, observed.cluster.unaccepted
    message = f"{lacking} ledgers are under-replicated" if lacking else ""
    if gone:
        message = "; ".join(filter(None, [message, f"{gone} ledgers have entries that no replica can serve"]))
    if observed.cluster.accepted:
        accepted = f"an administrator accepted losses in {observed.cluster.accepted} ledgers"
        message = "; ".join(filter(None, [message, accepted]))
    return finding("FullyReplicated", not lacking and not gone, "AllReplicas", "LedgersLackReplicas", message)


def _placement(observed: PoolObservation, rows: tuple[BookieStatusRow, ...]) -> Finding:
    wanted = observed.resource.spec.placement.min_zones
    placed = [row for row in rows if row.node is not None]
    zones = {row.zone for row in placed if row.zone}
    if wanted == 1:
        return finding("PlacementSatisfied", True, "NoZonesAskedFor", "")
    if not placed:
        return finding("PlacementSatisfied", None, "", "", "no pod has a node yet")
    names = ", ".join(sorted(zones)) or "none named"
    message = f"bookies are in {len(zones)} zones ({names}), {wanted} are requested"
    return finding("PlacementSatisfied", len(zones) >= wanted, "EnoughZones", "TooFewZones", message)


def _disk(observed: PoolObservation, rows: tuple[BookieStatusRow, ...], space: Capacity | None) -> Finding:
    if space is None:
        return finding("DiskPressure", None, "", "", "no bookie reports its used space")
    warn = observed.resource.spec.engine.watermarks.warn
    full = [row.pod for row in rows if row.used_percent is not None and row.used_percent >= warn]
    message = f"{', '.join(full)} above {warn} %: add bookies or enlarge the volumes" if full else ""
    return finding("DiskPressure", bool(full), "NearlyFull", "Enough", message)


def _scale_down(at: Decisions) -> Finding:
    if at.scale_down_blocker is None:
        return finding("ScaleDownBlocked", False, "", "NotBlocked")
    reason, message = at.scale_down_blocker
    return finding("ScaleDownBlocked", True, reason, "", message)


def _replace(observed: PoolObservation) -> Finding:
    """Report lost volumes whose bookie cannot be replaced yet, and why."""
    lost = replace.wanted(observed)
    blocked = None if lost is None else replace.blocker(observed, lost)
    if blocked is None:
        return finding(replace.BLOCKED, False, "", "NothingLost" if lost is None else "UnderWay")
    return finding(replace.BLOCKED, True, blocked[0], "", blocked[1])


def _cookies(observed: PoolObservation, rows: tuple[BookieStatusRow, ...]) -> Finding:
    """Check that the metadata know every bookie of the pool, and that no two pods report the same id."""
    if observed.cluster is None:
        return finding("CookiesConsistent", None, "", "", METADATA_SILENT)
    ids = [row.id for row in rows if row.id]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    leaving = observed.resource.status.operation
    gone = leaving.bookie if leaving is not None else None
    unknown = [one for one in ids if one not in observed.cluster.known and one != gone]
    problems = [f"{one} is the id of several pods" for one in twice]
    problems += [f"{', '.join(unknown)} not found in the metadata"] if unknown else []
    return finding("CookiesConsistent", not problems, "Consistent", "Inconsistent", "; ".join(problems))


def _quiesced(stalled: Finding, at: Decisions) -> Finding:
    idle = at.operation is None and not at.work_left and at.scale_down_blocker is None
    idle = idle and stalled.status is not Truth.TRUE
    return finding("Quiesced", idle, "NothingUnderWay", "Working")
