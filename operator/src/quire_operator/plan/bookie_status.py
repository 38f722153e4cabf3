"""Renders the status of a `Bookie` from an observation and the plan's decisions. Pure."""

from quire_operator.api.bookie import (
    BookieState,
    BookieStatus,
    BookieStatusRow,
    Capacity,
    DrainProgress,
    LastScrub,
    LostBookie,
    UnderReplicated,
)
from quire_operator.api.conditions import moved_on
from quire_operator.builders.naming import BOOKIE, ordinal_of, selector_text
from quire_operator.builders.tuning import derived_of_bookies
from quire_operator.plan import slow
from quire_operator.plan.bookie_conditions import Decisions, judged
from quire_operator.plan.observation import UNSCHEDULABLE, ObservedBookie, ObservedPod, PoolObservation
from quire_operator.plan.operations import rfc3339, seconds_of
from quire_operator.plan.recommending import recommended
from quire_operator.plan.replace import why_lost
from quire_operator.plan.zones import zone_of_pods

SAMPLE_S, DAY_S = 3600.0, 86_400.0
_AGE_STEPS, _AGE_STEP_MAX_S = ((60.0, 10.0), (3600.0, 60.0)), 600.0
"""Pairs: below this age, the age is rounded down to multiples of this step. Seconds."""


def render_status(observed: PoolObservation, at: Decisions) -> BookieStatus:
    """Return the status after this reconciliation."""
    resource, cluster = observed.resource, observed.cluster
    rows = bookie_rows(observed)
    space = capacity(observed)
    slow_rows = slow.counted(observed)
    judgement = judged(observed, rows, slow_rows, space, at)
    states = [row.state for row in rows]
    return BookieStatus(
        observed_generation=resource.meta.generation,
        phase=judgement.phase,
        replicas=len(observed.pods),
        selector=selector_text(resource.meta.name, BOOKIE),
        ready=sum(row.pod in observed.bookies for row in rows),
        writable=states.count(BookieState.WRITABLE),
        read_only=states.count(BookieState.READ_ONLY),
        draining=states.count(BookieState.DRAINING) + states.count(BookieState.DRAINED),
        lost=states.count(BookieState.LOST),
        capacity=space,
        autoscale=recommended(observed, space),
        under_replicated=None
        if cluster is None
        else UnderReplicated(count=cluster.under_replicated, oldest_seconds=oldest_mark_age_s(observed)),
        unrecoverable=None if cluster is None else cluster.unrecoverable,
        last_scrub=last_scrub(observed),
        operation=at.operation,
        slow_bookies=slow_rows,
        slow_bookie_replaced_at=_slow_bookie_replaced_at(observed, at),
        derived_settings=derived_of_bookies(resource.spec) or None,
        lost_bookies=lost_bookies(observed),
        bookies=rows,
        conditions=moved_on(
            resource.status.conditions, judgement.conditions, rfc3339(observed.now_s), resource.meta.generation
        ),
    )


def _slow_bookie_replaced_at(observed: PoolObservation, at: Decisions) -> str | None:
    """Return when the last replacement of a slow bookie began."""
    if at.operation is not None and at.operation.avoid_node is not None:
        return at.operation.started_at
    return observed.resource.status.slow_bookie_replaced_at


def bookie_rows(observed: PoolObservation) -> tuple[BookieStatusRow, ...]:
    """Return a row for each pod, by ordinal, and for each bookie that is between two pods, so that its id is kept."""
    there, zones = {pod.name for pod in observed.pods}, zone_of_pods(observed)
    claimed = {claim.pod for claim in observed.claims if not claim.deleting}
    between = [
        BookieStatusRow(
            id=one, pod=pod, zone=zones.get(pod), state=BookieState.STARTING, reason="its pod is being recreated"
        )
        for pod, one in observed.known_ids.items()
        if pod not in there and pod in claimed
    ]
    rows = [*(_row(observed, pod, zones.get(pod.name)) for pod in observed.pods), *between]
    return tuple(sorted(rows, key=lambda row: ordinal_of(row.pod)))


def _row(observed: PoolObservation, pod: ObservedPod, zone: str | None) -> BookieStatusRow:
    """Return the row of a pod. `zone`: that of its node, or of its last one."""
    bookie = observed.bookies.get(pod.name)
    bookie_id = observed.id_of(pod.name) or ""
    drain = None if observed.cluster is None else observed.cluster.drain_of(bookie_id)
    state, reason = _state(pod, bookie, draining=drain is not None, emptied=drain is not None and drain.emptied)
    if bookie is None and (lost := why_lost(observed, pod)) is not None:
        state, reason = BookieState.LOST, lost
    used = None
    if bookie is not None and bookie.total_bytes:
        used = _percent(bookie.total_bytes - bookie.free_bytes, bookie.total_bytes)
    return BookieStatusRow(
        id=bookie_id,
        pod=pod.name,
        node=pod.node,
        zone=zone,
        state=state,
        reason=reason,
        used_percent=used,
        drain=None if drain is None else DrainProgress(remaining=drain.ledgers_left, eta_seconds=drain.eta_s),
    )


def _state(
    pod: ObservedPod, bookie: ObservedBookie | None, *, draining: bool, emptied: bool
) -> tuple[BookieState, str | None]:
    if draining:
        return (BookieState.DRAINED, "empty") if emptied else (BookieState.DRAINING, "its ledgers are being copied")
    if bookie is None and pod.ready:
        return BookieState.UNREACHABLE, "its pod is ready, but its HTTP port does not respond to the operator"
    if bookie is None and pod.blocked is not None and pod.blocked[0] == UNSCHEDULABLE:
        return BookieState.FAILING, f"{UNSCHEDULABLE}: {pod.blocked[1]}"
    if bookie is None and pod.failure is not None:
        return BookieState.FAILING, pod.failure
    if bookie is None and pod.started:
        return BookieState.UNREACHABLE, "its pod was ready before and is not any more: its node may be down"
    if bookie is None and pod.node is None:
        return BookieState.STARTING, "its pod is not scheduled yet"
    if bookie is None:
        return BookieState.STARTING, "it does not respond yet"
    if not bookie.writable:
        return BookieState.READ_ONLY, ", ".join(bookie.read_only_reasons) or "it reports no reason"
    return BookieState.WRITABLE, "in limbo" if bookie.in_limbo else None


def oldest_mark_age_s(observed: PoolObservation) -> int | None:
    """Return the age, rounded to steps that grow with it: an exact value would cause a write in each reconciliation."""
    if observed.cluster is None or observed.cluster.oldest_mark_s is None:
        return None
    age_s = max(0.0, observed.now_s - observed.cluster.oldest_mark_s)
    step_s = next((step_s for below_s, step_s in _AGE_STEPS if age_s < below_s), _AGE_STEP_MAX_S)
    return int(age_s // step_s * step_s)


def last_scrub(observed: PoolObservation) -> LastScrub | None:
    """Return the oldest scrub of the bookies that respond; if none does, the last known one."""
    if not observed.bookies:
        return observed.resource.status.last_scrub
    ends = [bookie.scrub_ended_s for bookie in observed.bookies.values()]
    oldest_s = None if None in ends else min(end for end in ends if end is not None)
    return LastScrub(
        finished_at=None if oldest_s is None else rfc3339(oldest_s),
        damaged=sum(bookie.scrub_damages for bookie in observed.bookies.values()),
    )


def lost_bookies(observed: PoolObservation) -> tuple[LostBookie, ...]:
    """Return recorded lost bookies and those whose pod has another bookie now, until the cluster has removed them."""
    found = {lost.id: lost.pod for lost in observed.resource.status.lost_bookies}
    found |= {
        before: pod
        for pod, before in observed.known_ids.items()
        if pod in observed.bookies and observed.bookies[pod].id != before
    }
    there = {bookie.id for bookie in observed.bookies.values()}
    known = None if observed.cluster is None else observed.cluster.known
    return tuple(
        LostBookie(id=one, pod=pod)
        for one, pod in sorted(found.items())
        if one not in there and (known is None or one in known)
    )


def capacity(observed: PoolObservation) -> Capacity | None:
    """Return the total space of the bookies that respond and its growth rate; None if none responds."""
    total = sum(bookie.total_bytes for bookie in observed.bookies.values())
    if not total:
        return None
    used = total - sum(bookie.free_bytes for bookie in observed.bookies.values())
    found = Capacity(total=total, used=used, used_percent=_percent(used, total))
    return _with_rate(observed, found)


def _with_rate(observed: PoolObservation, now: Capacity) -> Capacity:
    """Add the growth rate from two samples at least an hour apart. A sample of a day or more replaces the average."""
    before, at = observed.resource.status.capacity, rfc3339(observed.now_s)
    if before is None or before.sampled_at is None or before.total != now.total:
        return now.model_copy(update={"sampled_at": at, "sampled_used": now.used})
    age_s, rate = observed.now_s - seconds_of(before.sampled_at), before.bytes_per_day
    sample = {"sampled_at": before.sampled_at, "sampled_used": before.sampled_used}
    if age_s >= SAMPLE_S:
        fresh = (now.used - before.sampled_used) * DAY_S / age_s
        weight = min(1.0, age_s / DAY_S)
        rate = round(fresh if rate is None else rate * (1 - weight) + fresh * weight)
        sample = {"sampled_at": at, "sampled_used": now.used}
    left = now.total * observed.resource.spec.engine.watermarks.full / 100 - now.used
    days = None if rate is None or rate <= 0 else max(0, int(left / rate))
    return now.model_copy(update={**sample, "bytes_per_day": rate, "days_to_full": days})


def _percent(part: int, whole: int) -> int:
    """Return the percentage, rounded up, so that a nearly full disk is not reported as less full."""
    return min(100, -(-100 * part // whole))
