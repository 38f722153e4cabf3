"""The status of a `Bookie` from what was seen and decided. Pure."""

from quire_operator.api.bookie import (
    Bookie,
    BookieState,
    BookieStatus,
    BookieStatusRow,
    Capacity,
    DrainProgress,
    Phase,
    UnderReplicated,
)
from quire_operator.api.conditions import moved_on
from quire_operator.api.operations import OperationType
from quire_operator.builders.naming import BOOKIE, ordinal_of, selector_text
from quire_operator.plan.bookie_conditions import Standing, conditions
from quire_operator.plan.operations import rfc3339
from quire_operator.plan.seen import BookieSeen, PodSeen, PoolSeen


def render_status(seen: PoolSeen, at: Standing) -> BookieStatus:
    """Everything but what only time tells (days to full)."""
    resource, cluster = seen.resource, seen.cluster
    rows = bookie_rows(seen)
    space = capacity(seen)
    found = conditions(seen, rows, space, at)
    states = [row.state for row in rows]
    return BookieStatus(
        observed_generation=resource.meta.generation,
        phase=phase(seen, at, rows),
        replicas=len(seen.pods),
        selector=selector_text(resource.meta.name, BOOKIE),
        ready=sum(row.pod in seen.bookies for row in rows),
        writable=states.count(BookieState.WRITABLE),
        read_only=states.count(BookieState.READ_ONLY),
        draining=states.count(BookieState.DRAINING) + states.count(BookieState.DRAINED),
        lost=states.count(BookieState.LOST),
        capacity=space,
        under_replicated=None
        if cluster is None
        else UnderReplicated(count=cluster.under_replicated, oldest_seconds=cluster.oldest_mark_s),
        unrecoverable=None if cluster is None else cluster.unrecoverable,
        last_scrub=resource.status.last_scrub,
        operation=at.operation,
        bookies=rows,
        conditions=moved_on(resource.status.conditions, found, rfc3339(seen.now_s), resource.meta.generation),
    )


def bookie_rows(seen: PoolSeen) -> tuple[BookieStatusRow, ...]:
    """One for each pod, by ordinal."""
    return tuple(_row(seen, pod) for pod in sorted(seen.pods, key=lambda pod: ordinal_of(pod.name)))


def _row(seen: PoolSeen, pod: PodSeen) -> BookieStatusRow:
    bookie = seen.bookies.get(pod.name)
    bookie_id = seen.id_of(pod.name) or ""
    drain = None if seen.cluster is None else seen.cluster.drain_of(bookie_id)
    state, reason = _state(pod, bookie, draining=drain is not None, emptied=drain is not None and drain.emptied)
    used = None
    if bookie is not None and bookie.total_bytes:
        used = _percent(bookie.total_bytes - bookie.free_bytes, bookie.total_bytes)
    return BookieStatusRow(
        id=bookie_id,
        pod=pod.name,
        node=pod.node,
        zone=pod.zone,
        state=state,
        reason=reason,
        used_percent=used,
        drain=None if drain is None else DrainProgress(remaining=drain.ledgers_left, eta_seconds=drain.eta_s),
    )


def _state(pod: PodSeen, bookie: BookieSeen | None, *, draining: bool, emptied: bool) -> tuple[BookieState, str | None]:
    if draining:
        return (BookieState.DRAINED, "empty") if emptied else (BookieState.DRAINING, "its ledgers are copied away")
    if bookie is None and pod.ready:
        return BookieState.UNREACHABLE, "its pod is ready and its HTTP port does not answer the operator"
    if bookie is None and pod.node is None:
        return BookieState.STARTING, "its pod has no node yet"
    if bookie is None:
        return BookieState.STARTING, "it does not answer yet"
    if not bookie.writable:
        return BookieState.READ_ONLY, ", ".join(bookie.read_only_reasons) or "it says no reason"
    return BookieState.WRITABLE, "in limbo" if bookie.in_limbo else None


def capacity(seen: PoolSeen) -> Capacity | None:
    """Sums of those that answer; None when nobody does."""
    total = sum(bookie.total_bytes for bookie in seen.bookies.values())
    if not total:
        return None
    used = total - sum(bookie.free_bytes for bookie in seen.bookies.values())
    return Capacity(total=total, used=used, used_percent=_percent(used, total))


def _percent(part: int, whole: int) -> int:
    """Rounded up: what is nearly full must not look as if it were not."""
    return min(100, -(-100 * part // whole))


def phase(seen: PoolSeen, at: Standing, rows: tuple[BookieStatusRow, ...]) -> Phase:
    """The state in a word; what a person should look at first wins."""
    resource: Bookie = seen.resource
    if resource.meta.deletion_timestamp is not None:
        return Phase.DELETING
    if at.faults:
        return Phase.INVALID
    if resource.spec.paused:
        return Phase.PAUSED
    if at.operation is not None:
        during = {OperationType.DRAIN: Phase.SCALING, OperationType.ROLL: Phase.UPDATING}
        return during.get(at.operation.type, Phase.EXPANDING)
    writable = sum(row.state is BookieState.WRITABLE for row in rows)
    if seen.stateful_set is None or (not seen.known_ids and writable < resource.spec.replicas):
        return Phase.CREATING
    lacking = seen.cluster is not None and not seen.fully_replicated
    if lacking or writable < resource.spec.replicas:
        return Phase.DEGRADED
    return Phase.RUNNING
