"""The conditions of a `Bookie`: what each says after a look, with its reason. Pure.

A question that could not be asked is answered Unknown, never by what was true before.
"""

from dataclasses import dataclass

from quire_operator.api.bookie import BookieState, BookieStatusRow, Capacity
from quire_operator.api.conditions import Finding, Truth
from quire_operator.api.operations import Operation, Step
from quire_operator.plan import replace, roll
from quire_operator.plan.seen import PoolSeen

METADATA_SILENT = "nobody could ask the metadata store: it is away, or no bookie and no auto-recovery answers"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the plan decided, beside what was seen."""

    operation: Operation | None
    """What is under way after this pass."""
    faults: tuple[str, ...] = ()
    not_served: tuple[str, ...] = ()
    scale_down_blocker: tuple[str, str] | None = None
    expansion_blocker: str | None = None
    work_left: bool = False
    """Something is wanted that is not there yet."""
    deletion_held: str | None = None
    """Why the resource cannot be deleted yet."""


def conditions(
    seen: PoolSeen, rows: tuple[BookieStatusRow, ...], space: Capacity | None, at: Standing
) -> list[Finding]:
    """All of them."""
    found = [
        _ready(seen, rows, at),
        _progressing(seen, at),
        _degraded(seen, rows, at),
        _metadata(seen),
        _replicated(seen),
        _placement(seen, rows),
        _disk(seen, rows, space),
        _scale_down(at),
        _replace(seen),
        _cookies(seen, rows),
        _quiesced(at),
    ]
    if at.not_served:
        fields = ", ".join(at.not_served)
        found.append(Finding(type="NotYetServed", status=Truth.TRUE, reason="FieldsWithoutEffect", message=fields))
    return found


def finding(kind: str, holds: bool | None, yes: str, no: str, message: str = "") -> Finding:
    """A condition that holds, does not, or is not known; the reason says which."""
    if holds is None:
        return Finding(type=kind, status=Truth.UNKNOWN, reason="NotKnown", message=message)
    return Finding(type=kind, status=Truth.TRUE if holds else Truth.FALSE, reason=yes if holds else no, message=message)


def _ready(seen: PoolSeen, rows: tuple[BookieStatusRow, ...], at: Standing) -> Finding:
    """Enough writable bookies for everything that is declared on them."""
    if at.faults:
        return finding("Ready", False, "", "InvalidSpec", "; ".join(at.faults))
    if at.deletion_held is not None:
        return finding("Ready", False, "", "DeletionHeld", at.deletion_held)
    wanted = seen.resource.spec.replicas
    writable = sum(row.state is BookieState.WRITABLE for row in rows)
    needed = min(wanted, max((namespace.ensemble for namespace in seen.namespaces), default=wanted))
    message = f"{writable} of {wanted} bookies are writable"
    if writable < needed:
        return finding("Ready", False, "", "TooFewWritable", f"{message}, {needed} are needed")
    return finding("Ready", True, "Serving", "", message)


def _progressing(seen: PoolSeen, at: Standing) -> Finding:
    operation = at.operation
    if seen.resource.spec.paused:
        return finding("Progressing", False, "", "Paused", "spec.paused is set: nothing is changed")
    if at.expansion_blocker is not None:
        return finding("Progressing", False, "", "VolumesCannotGrow", at.expansion_blocker)
    if operation is None:
        return finding("Progressing", at.work_left, "Creating", "NothingToDo")
    stuck = operation.step in (Step.SETTLING, Step.REPLACING, Step.REJOINING) and roll.is_stuck(operation, seen)
    what = f"{operation.type.value}: {operation.step.value}" + (f", {operation.message}" if operation.message else "")
    return finding("Progressing", not stuck, operation.type.value, "Stuck", what)


def _degraded(seen: PoolSeen, rows: tuple[BookieStatusRow, ...], at: Standing) -> Finding:
    gone, ended_by_us = (BookieState.UNREACHABLE, BookieState.LOST, BookieState.FAILING), _ended_by_us(seen, at)
    away = [
        row.pod
        for row in rows
        if row.state in gone and (row.pod != ended_by_us or row.state is not BookieState.UNREACHABLE)
    ]
    damaged = 0 if seen.cluster is None else seen.cluster.unaccepted
    said = [f"{', '.join(away)} cannot be reached"] if away else []
    said += [f"{damaged} ledgers have entries that no replica could serve"] if damaged else []
    failing = [f"{row.pod}: {row.reason}" for row in rows if row.state is BookieState.FAILING]
    said += failing
    reason = "LedgersUnreadable" if damaged else "BookiesAway"
    return finding("Degraded", bool(said), reason, "Well", "; ".join(said))


def _ended_by_us(seen: PoolSeen, at: Standing) -> str | None:
    """The pod that an operation has taken away for now, or for good: that is progress, until it takes too long."""
    operation = at.operation
    if operation is None or operation.step not in (Step.REPLACING, Step.SETTLING, Step.SHRINKING):
        return None
    return None if roll.is_stuck(operation, seen) else operation.pod


def _metadata(seen: PoolSeen) -> Finding:
    if seen.cluster is None and not seen.bookies and not seen.recovery_ready:
        return finding("MetadataReachable", None, "", "", METADATA_SILENT)
    return finding(
        "MetadataReachable", seen.cluster is not None, "Answers", "NoAnswer", "" if seen.cluster else METADATA_SILENT
    )


def _replicated(seen: PoolSeen) -> Finding:
    if seen.cluster is None:
        return finding("FullyReplicated", None, "", "", METADATA_SILENT)
    lacking, gone = seen.cluster.under_replicated, seen.cluster.unaccepted
    message = f"{lacking} ledgers lack a replica" if lacking else ""
    if gone:
        message = "; ".join(filter(None, [message, f"of {gone} no replica could be read"]))
    if seen.cluster.accepted:
        message = "; ".join(filter(None, [message, f"of {seen.cluster.accepted} a person accepted a loss"]))
    return finding("FullyReplicated", not lacking and not gone, "AllReplicas", "LedgersLackReplicas", message)


def _placement(seen: PoolSeen, rows: tuple[BookieStatusRow, ...]) -> Finding:
    wanted = seen.resource.spec.placement.min_zones
    placed = [row for row in rows if row.node is not None]
    zones = {row.zone for row in placed if row.zone}
    if wanted == 1:
        return finding("PlacementSatisfied", True, "NoZonesAskedFor", "")
    if not placed:
        return finding("PlacementSatisfied", None, "", "", "no pod has a node yet")
    message = f"bookies are in {len(zones)} zones ({', '.join(sorted(zones)) or 'none named'}), {wanted} are asked for"
    return finding("PlacementSatisfied", len(zones) >= wanted, "EnoughZones", "TooFewZones", message)


def _disk(seen: PoolSeen, rows: tuple[BookieStatusRow, ...], space: Capacity | None) -> Finding:
    if space is None:
        return finding("DiskPressure", None, "", "", "no bookie says how full it is")
    warn = seen.resource.spec.engine.watermarks.warn
    full = [row.pod for row in rows if row.used_percent is not None and row.used_percent >= warn]
    message = f"{', '.join(full)} above {warn} %: add bookies, or larger volumes" if full else ""
    return finding("DiskPressure", bool(full), "NearlyFull", "Enough", message)


def _scale_down(at: Standing) -> Finding:
    if at.scale_down_blocker is None:
        return finding("ScaleDownBlocked", False, "", "NotBlocked")
    reason, message = at.scale_down_blocker
    return finding("ScaleDownBlocked", True, reason, "", message)


def _replace(seen: PoolSeen) -> Finding:
    """Volumes are lost, and what keeps a new bookie from taking over."""
    lost = replace.wanted(seen)
    blocked = None if lost is None else replace.blocker(seen, lost)
    if blocked is None:
        return finding(replace.BLOCKED, False, "", "NothingLost" if lost is None else "UnderWay")
    return finding(replace.BLOCKED, True, blocked[0], "", blocked[1])


def _cookies(seen: PoolSeen, rows: tuple[BookieStatusRow, ...]) -> Finding:
    """Every bookie of the pool is one that the metadata knows, and no two pods say that they are the same."""
    if seen.cluster is None:
        return finding("CookiesConsistent", None, "", "", METADATA_SILENT)
    ids = [row.id for row in rows if row.id]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    leaving = seen.resource.status.operation
    gone = leaving.bookie if leaving is not None else None
    unknown = [one for one in ids if one not in seen.cluster.known and one != gone]
    said = [f"{one} is the id of several pods" for one in twice]
    said += [f"the metadata does not know {', '.join(unknown)}"] if unknown else []
    return finding("CookiesConsistent", not said, "Consistent", "Inconsistent", "; ".join(said))


def _quiesced(at: Standing) -> Finding:
    idle = at.operation is None and not at.work_left and at.scale_down_blocker is None and not at.faults
    return finding("Quiesced", idle, "NothingUnderWay", "Working")
