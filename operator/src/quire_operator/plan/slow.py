"""Finds bookies whose journal's disk is slow compared with the other bookies of the pool. Pure.

    suspected (first slow minute) -> slow (`windows` slow minutes more than good ones) -> cleared (as many good ones)

Each bookie reports the 99th percentile of its journal writes of the last minute. One slow minute proves nothing, so
minutes are counted: a slow one adds one, a good one subtracts one. In between, and while a bookie or its peers do
too little, the count stays. The adds are only evidence: a bookie with more load has slower adds and no slower disk.
"""

from dataclasses import dataclass
from statistics import median

from quire_operator.api.conditions import Finding, Truth
from quire_operator.api.quantities import duration_s
from quire_operator.api.slow_bookies import SlowBookie, SlowBookieAction, SlowBookies
from quire_operator.builders.naming import ordinal_of
from quire_operator.plan import drain
from quire_operator.plan.actions import Action, Emit
from quire_operator.plan.observation import ObservedLoad, ObservedPod, PoolObservation
from quire_operator.plan.operations import rfc3339, seconds_of

CONDITION = "SlowBookie"
PEERS_MIN = 2
"""With one peer it could not be told which of the two is slow."""
GOOD_BELOW = 0.5
"""A minute is good below this share of the limit. Between this and the limit it changes nothing."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The journal writes of a bookie and of its peers in one minute, in seconds."""

    window_s: float
    journal_s: float
    peers_journal_s: float
    add_s: float | None
    peers_add_s: float | None
    peers: int


def comparisons(observed: PoolObservation) -> dict[str, Comparison]:
    """Return a comparison by pod, for the bookies that wrote enough and have enough peers that did."""
    least = observed.resource.spec.slow_bookies.min_adds
    loads = {pod: one.load for pod, one in observed.bookies.items() if _is_judged(one.load, least)}
    found = {}
    for pod, load in loads.items():
        others = [one for other, one in loads.items() if other != pod and one is not None]
        if load is None or load.journal_write_p99_s is None or len(others) < PEERS_MIN:
            continue
        journal = median(one.journal_write_p99_s for one in others if one.journal_write_p99_s is not None)
        adds = [one.add_p99_s for one in others if one.add_p99_s is not None]
        found[pod] = Comparison(
            load.window_s,
            load.journal_write_p99_s,
            journal,
            load.add_p99_s,
            median(adds) if adds else None,
            len(others),
        )
    return found


def _is_judged(load: ObservedLoad | None, adds_min: int) -> bool:
    """Return whether a bookie did enough. Its journal writes are not counted: a slow disk makes fewer, larger ones."""
    return load is not None and load.adds >= adds_min and load.journal_write_p99_s is not None


def is_slow(one: Comparison, spec: SlowBookies) -> bool | None:
    """Return whether the bookie was slow in this minute; None between slow and good."""
    limit_s = max(duration_s(spec.floor), spec.factor * one.peers_journal_s)
    if one.journal_s >= limit_s:
        return True
    return False if one.journal_s < GOOD_BELOW * limit_s else None


def counted(observed: PoolObservation) -> tuple[SlowBookie, ...]:
    """Return the suspected and the slow bookies after this observation, in the order of their pods.

    A bookie that does not respond keeps its count. One that is not in the pool any more is dropped.
    """
    seen, spec = comparisons(observed), observed.resource.spec.slow_bookies
    before = {row.id: row for row in observed.resource.status.slow_bookies}
    found = []
    for pod in observed.pods:
        bookie = observed.id_of(pod.name)
        if bookie is None:
            continue
        row = _counted(before.get(bookie), bookie, pod.name, seen.get(pod.name), spec, observed.now_s)
        if row is not None:
            found.append(row)
    return tuple(sorted(found, key=lambda row: ordinal_of(row.pod)))


def _counted(
    row: SlowBookie | None, bookie: str, pod: str, seen: Comparison | None, spec: SlowBookies, now_s: float
) -> SlowBookie | None:
    """Return the row of one bookie after this minute; None if it is neither suspected nor slow."""
    if seen is None or (row is not None and now_s - seconds_of(row.measured_at) < seen.window_s):
        return row  # the window overlaps the counted one
    slow = is_slow(seen, spec)
    if slow is None or (row is None and not slow):
        return row
    former = 0 if row is None else min(row.windows, spec.windows)
    windows = min(spec.windows, former + 1) if slow else former - 1
    if windows <= 0:
        return None
    if row is not None and windows == row.windows:
        return row  # without a change of the count the status is not written
    now = rfc3339(now_s)
    return SlowBookie(
        id=bookie,
        pod=pod,
        since=now if row is None else row.since,
        slow=windows == spec.windows or (row is not None and row.slow),
        windows=windows,
        measured_at=now,
        journal_micros=_micros(seen.journal_s),
        peers_journal_micros=_micros(seen.peers_journal_s),
        add_micros=None if seen.add_s is None else _micros(seen.add_s),
        peers_add_micros=None if seen.peers_add_s is None else _micros(seen.peers_add_s),
        peers=seen.peers,
    )


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def described(row: SlowBookie) -> str:
    """Return the evidence: the figures of the bookie and of its peers, and since when."""
    adds = ""
    if row.add_micros is not None and row.peers_add_micros is not None:
        adds = f"; adds: {_ms(row.add_micros)}, peers {_ms(row.peers_add_micros)}"
    return (
        f"{row.pod} ({row.id}): 99 % of its journal writes take up to {_ms(row.journal_micros)}, the median of "
        f"{row.peers} other bookies is {_ms(row.peers_journal_micros)}{adds}; since {row.since}"
    )


def _ms(micros: int) -> str:
    return f"{micros / 1000:.1f} ms" if micros < 100_000 else f"{micros // 1000} ms"


def finding(observed: PoolObservation, rows: tuple[SlowBookie, ...]) -> Finding:
    """Return the condition. True: bookies were found slow; the message has the evidence."""
    slow = [row for row in rows if row.slow]
    if not slow:
        if not comparisons(observed):
            spec = observed.resource.spec.slow_bookies
            message = f"fewer than {PEERS_MIN + 1} bookies had {spec.min_adds} adds in the last minute"
            return Finding(type=CONDITION, status=Truth.FALSE, reason="NotCompared", message=message)
        return Finding(type=CONDITION, status=Truth.FALSE, reason="NoneFound")
    parts = list(map(described, slow))
    blocked = blocker(observed, rows)
    if blocked is not None:
        parts.append(f"not replaced: {blocked}")
    return Finding(type=CONDITION, status=Truth.TRUE, reason="SlowJournal", message="; ".join(parts))


def events(observed: PoolObservation, rows: tuple[SlowBookie, ...]) -> list[Action]:
    """Return an event when a bookie is found slow, and when it is well again."""
    before = {row.id: row for row in observed.resource.status.slow_bookies if row.slow}
    now = {row.id: row for row in rows if row.slow}
    there = {observed.id_of(pod.name) for pod in observed.pods}
    found: list[Action] = [Emit(CONDITION, described(row), True) for one, row in now.items() if one not in before]
    found += [
        Emit("SlowBookieRecovered", f"{row.pod} ({one}) is as fast as the other bookies again")
        for one, row in before.items()
        if one not in now and one in there
    ]
    return found


def worst(observed: PoolObservation, rows: tuple[SlowBookie, ...]) -> ObservedPod | None:
    """Return the pod of the slowest of the slow bookies, which is replaced first; None if there is none."""
    slow = [row for row in rows if row.slow]
    row = max(slow, key=lambda row: (row.journal_micros, row.pod), default=None)
    return None if row is None else observed.pod(row.pod)


def blocker(observed: PoolObservation, rows: tuple[SlowBookie, ...]) -> str | None:
    """Return why the slowest bookie is not replaced now; None if it may be, or is, or if there is no slow bookie."""
    spec, status, pod = observed.resource.spec, observed.resource.status, worst(observed, rows)
    if pod is None or (status.operation is not None and status.operation.pod == pod.name):
        return None
    if spec.slow_bookies.action is SlowBookieAction.REPORT:
        return "slowBookies.action is Report"
    since_s = None if status.slow_bookie_replaced_at is None else seconds_of(status.slow_bookie_replaced_at)
    if since_s is not None and observed.now_s - since_s < duration_s(spec.slow_bookies.replace_interval):
        return f"another was replaced within slowBookies.replaceInterval ({spec.slow_bookies.replace_interval})"
    silent = sorted({one.name for one in observed.pods} - observed.bookies.keys())
    if silent or pod.node is None or len(observed.bookies) != spec.replicas:
        return f"not every bookie responds: {', '.join(silent) or 'one is missing'}"
    if status.operation is not None:
        return f"the operation {status.operation.type.value} runs"
    blocked = drain.copy_blocker(observed, pod.name)
    return None if blocked is None else blocked[1]


def wanted(observed: PoolObservation, rows: tuple[SlowBookie, ...]) -> ObservedPod | None:
    """Return the pod whose bookie is to be replaced now because its disk is slow, or None."""
    pod = worst(observed, rows)
    return pod if pod is not None and blocker(observed, rows) is None else None
