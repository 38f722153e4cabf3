"""Derives the conditions of a `Bookie`, with reasons, from an observation. Pure.

If a fact could not be observed, the condition is Unknown; it never repeats an earlier value.
"""

from dataclasses import dataclass

from quire_operator.api.bookie import BookieState, BookieStatusRow, Capacity
from quire_operator.api.conditions import Finding, Truth
from quire_operator.api.operations import Operation, Step
from quire_operator.plan import replace, roll
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


def conditions(
    observed: PoolObservation, rows: tuple[BookieStatusRow, ...], space: Capacity | None, at: Decisions
) -> list[Finding]:
    """Return all conditions."""
    found = [
        _ready(observed, rows, at),
        _progressing(observed, at),
        _degraded(observed, rows, at),
        _metadata(observed),
        _replicated(observed),
        _placement(observed, rows),
        _disk(observed, rows, space),
        _scale_down(at),
        _replace(observed),
        _cookies(observed, rows),
        _quiesced(at),
    ]
    if at.not_served:
        fields = ", ".join(at.not_served)
        found.append(Finding(type="NotYetServed", status=Truth.TRUE, reason="FieldsWithoutEffect", message=fields))
    return found


def finding(kind: str, holds: bool | None, yes: str, no: str, message: str = "") -> Finding:
    """Return a condition that is True, False or Unknown, with the matching reason."""
    if holds is None:
        return Finding(type=kind, status=Truth.UNKNOWN, reason="NotKnown", message=message)
    return Finding(type=kind, status=Truth.TRUE if holds else Truth.FALSE, reason=yes if holds else no, message=message)


def _ready(observed: PoolObservation, rows: tuple[BookieStatusRow, ...], at: Decisions) -> Finding:
    """Check for enough writable bookies for the largest ensemble that is declared on them."""
    if at.faults:
        return finding("Ready", False, "", "InvalidSpec", "; ".join(at.faults))
    if at.deletion_held is not None:
        return finding("Ready", False, "", "DeletionHeld", at.deletion_held)
    wanted = observed.resource.spec.replicas
    writable = sum(row.state is BookieState.WRITABLE for row in rows)
    needed = min(wanted, max((namespace.ensemble for namespace in observed.namespaces), default=wanted))
    message = f"{writable} of {wanted} bookies are writable"
    if writable < needed:
        return finding("Ready", False, "", "TooFewWritable", f"{message}, {needed} are needed")
    return finding("Ready", True, "Serving", "", message)


def _progressing(observed: PoolObservation, at: Decisions) -> Finding:
    operation = at.operation
    if observed.resource.spec.paused:
        return finding("Progressing", False, "", "Paused", "spec.paused is set: no changes are made")
    if at.expansion_blocker is not None:
        return finding("Progressing", False, "", "VolumesCannotGrow", at.expansion_blocker)
    if operation is None:
        return finding("Progressing", at.work_left, "Creating", "NothingToDo")
    stuck = operation.step in (Step.SETTLING, Step.REPLACING, Step.REJOINING) and roll.is_stuck(operation, observed)
    what = f"{operation.type.value}: {operation.step.value}" + (f", {operation.message}" if operation.message else "")
    return finding("Progressing", not stuck, operation.type.value, "Stuck", what)


def _degraded(observed: PoolObservation, rows: tuple[BookieStatusRow, ...], at: Decisions) -> Finding:
    gone, ended_by_us = (BookieState.UNREACHABLE, BookieState.LOST, BookieState.FAILING), _ended_by_us(observed, at)
    away = [
        row.pod
        for row in rows
        if row.state in gone and (row.pod != ended_by_us or row.state is not BookieState.UNREACHABLE)
    ]
    damaged = 0 if observed.cluster is None else observed.cluster.unaccepted
    problems = [f"{', '.join(away)} cannot be reached"] if away else []
    problems += [f"{damaged} ledgers have entries that no replica can serve"] if damaged else []
    failing = [f"{row.pod}: {row.reason}" for row in rows if row.state is BookieState.FAILING]
    problems += failing
    reason = "LedgersUnreadable" if damaged else "BookiesAway"
    return finding("Degraded", bool(problems), reason, "Well", "; ".join(problems))


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


def _quiesced(at: Decisions) -> Finding:
    idle = at.operation is None and not at.work_left and at.scale_down_blocker is None and not at.faults
    return finding("Quiesced", idle, "NothingUnderWay", "Working")
