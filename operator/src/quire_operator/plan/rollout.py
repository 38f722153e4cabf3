"""Rolls a changed revision of the brokers out: one pod first, and back if it does not become ready. Pure.

    First -> Settling -> Rest -> Cleaning -> Done
      |  \\-> Holding -> First        Kubernetes replaces the pods; the partition of the StatefulSet says how many
      \\-> RolledBack                 the former revision runs until the spec declares another one

A step is recorded before the next reconciliation acts on it, so that an operator that is killed continues. The last
revision that worked is kept as a ConfigMap (`broker_revision`); other ConfigMaps are deleted once no pod uses them. The
first revision of all has nothing to go back to: it reaches all pods at once.
"""

from dataclasses import dataclass

from quire_operator.api.conditions import Truth
from quire_operator.api.managed_ledger import RolloutRecord, RolloutStep
from quire_operator.api.quantities import duration_s
from quire_operator.builders.broker import AppliedRevision
from quire_operator.builders.broker_revision import Revision
from quire_operator.builders.naming import BROKER, ordinal_of, pod_name
from quire_operator.plan.actions import DeleteConfigMap, Emit
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.observation import ObservedPod
from quire_operator.plan.operations import rfc3339, seconds_of

ROLLED_BACK, STUCK, NOT_READY = "RolledBack", "RolloutStuck", "NotReady"
SAID_MAX = 1000
_UNDER_WAY = frozenset({RolloutStep.FIRST, RolloutStep.SETTLING, RolloutStep.REST, RolloutStep.HOLDING})


@dataclass(frozen=True, slots=True)
class Course:
    """What to apply, what to do, and what to record."""

    applied: AppliedRevision
    record: RolloutRecord | None
    actions: tuple[Emit | DeleteConfigMap, ...] = ()


def course(observed: LedgerObservation, wanted: Revision) -> Course:
    """Return the course of a reconciliation. `wanted`: the revision that the spec declares."""
    before = observed.resource.status.rollout
    lost = before is not None and before.step is RolloutStep.ROLLED_BACK and not _may_return(observed, before)
    if before is None or before.revision != wanted.name or lost:
        record = _begun(observed, wanted, before)
    else:
        record = before
    applied = _applied(observed, wanted, record)
    if observed.rejected is not None:
        return Course(applied, before)  # nothing has begun until the API server accepts it
    after = record if record is not before else _STEPS[before.step](before, observed)
    return Course(applied, after, (*_events(observed, before, after), *_garbage(observed, after)))


def is_under_way(record: RolloutRecord | None) -> bool:
    """Return whether pods change to another revision than the last one that worked."""
    return record is not None and record.step in _UNDER_WAY and record.good not in (None, record.revision)


def needs_time(record: RolloutRecord | None) -> bool:
    """Return whether the next step depends on the time, which no watch reports."""
    return is_under_way(record) or (record is not None and record.step in (RolloutStep.SETTLING, RolloutStep.CLEANING))


def reads_revisions(record: RolloutRecord | None, *, is_changed: bool) -> bool:
    """Return whether a plan needs the ConfigMaps of all revisions. `is_changed`: the spec has a new generation."""
    cleans = record is not None and record.step in (RolloutStep.CLEANING, RolloutStep.ROLLED_BACK)
    return is_changed or cleans or is_under_way(record)


def problem(observed: LedgerObservation, record: RolloutRecord | None) -> tuple[str, str] | None:
    """Return reason and message if the brokers do not, and will not, have the declared revision."""
    if record is None:
        return None
    if record.step is RolloutStep.ROLLED_BACK:
        return ROLLED_BACK, record.message or ""
    waits = record.step in (RolloutStep.FIRST, RolloutStep.REST) and is_under_way(record)
    limit_s = _limit_s(observed) * (1 if record.step is RolloutStep.FIRST else max(1, _replicas(observed)))
    since = record.started_at if record.step is RolloutStep.FIRST else record.step_started_at
    if not waits or observed.now_s - seconds_of(since) <= limit_s:
        return None
    others = [pod for pod in observed.pods if not _runs(observed, record, pod)]
    late = max(others, key=lambda pod: ordinal_of(pod.name), default=_first_pod(observed))
    kept = "" if record.step is RolloutStep.REST else f"; revision {record.good} is not available to return to"
    return STUCK, f"revision {record.revision} does not reach all brokers: {_said(observed, late)[1]}{kept}"[:SAID_MAX]


def _begun(observed: LedgerObservation, wanted: Revision, before: RolloutRecord | None) -> RolloutRecord:
    """Return the record of a new try, or of the return to the last revision that worked."""
    good = _adopted(observed) if before is None else before.good
    step = RolloutStep.REST if wanted.name == good else RolloutStep.FIRST
    now = rfc3339(observed.now_s)
    return RolloutRecord(step=step, revision=wanted.name, good=good, started_at=now, step_started_at=now)


def _adopted(observed: LedgerObservation) -> str | None:
    """Return the revision of brokers that serve although the resource has no record, as after `--cascade=orphan`."""
    there = observed.stateful_set
    serves = there is not None and there.current and any(_is_current(observed, pod) for pod in observed.pods)
    return there.revision if there is not None and serves else None


def _applied(observed: LedgerObservation, wanted: Revision, record: RolloutRecord) -> AppliedRevision:
    """Return the revision to apply in the step that was read."""
    good = _kept(observed, record)
    if record.step is RolloutStep.ROLLED_BACK and good is not None:
        return AppliedRevision(good)
    first = record.step in (RolloutStep.FIRST, RolloutStep.SETTLING, RolloutStep.HOLDING) and is_under_way(record)
    return AppliedRevision(
        wanted, max(0, _replicas(observed) - 1) if first else 0, good if is_under_way(record) else None
    )


def _first(record: RolloutRecord, observed: LedgerObservation) -> RolloutRecord:
    """Wait until the first pod has the revision and is ready; decide to roll back when that takes too long."""
    pod = _first_pod(observed)
    if _runs(observed, record, pod):
        return _moved(record, RolloutStep.SETTLING, observed, ready_mark=_mark(pod))
    held = _hindrance(observed)
    if held is not None:
        return _moved(record, RolloutStep.HOLDING, observed, reason=held[0], message=held[1])
    there = observed.stateful_set
    is_tried = there is not None and there.revision == record.revision
    age_s = observed.now_s - seconds_of(record.started_at)
    if not is_under_way(record) or not is_tried or age_s <= _limit_s(observed) or not _may_return(observed, record):
        return record
    reason, said = _said(observed, pod)
    message = (
        f"revision {record.revision} was tried on one broker, which was not ready within "
        f"{observed.resource.spec.brokers.rollout.ready_within}: {said}"
    )[:SAID_MAX]
    message += f"; the brokers have revision {record.good}, the last that worked, until the spec changes"
    return _moved(record, RolloutStep.ROLLED_BACK, observed, reason=reason, message=message)


def _kept(observed: LedgerObservation, record: RolloutRecord) -> Revision | None:
    """Return the last revision that worked."""
    return next((one.revision for one in observed.revisions if one.revision and one.revision.name == record.good), None)


def _may_return(observed: LedgerObservation, record: RolloutRecord) -> bool:
    return _kept(observed, record) is not None


def _settling(record: RolloutRecord, observed: LedgerObservation) -> RolloutRecord:
    """Wait until the first pod has stayed ready. The limit of `_first` still counts from the begin."""
    pod = _first_pod(observed)
    if not _runs(observed, record, pod) or _mark(pod) != record.ready_mark:
        return _moved(record, RolloutStep.FIRST, observed)
    stable_s = duration_s(observed.resource.spec.brokers.rollout.stable_for)
    if observed.now_s - seconds_of(record.step_started_at) < stable_s:
        return record
    return _moved(record, RolloutStep.REST, observed)


def _rest(record: RolloutRecord, observed: LedgerObservation) -> RolloutRecord:
    """Wait until all pods have the revision and are ready: from now on it is the one that worked."""
    there = observed.stateful_set
    if there is None or there.revision != record.revision:
        return record
    if len(observed.pods) != _replicas(observed) or not all(_runs(observed, record, pod) for pod in observed.pods):
        return record
    return _moved(record, RolloutStep.CLEANING, observed, good=record.revision)


def _holding(record: RolloutRecord, observed: LedgerObservation) -> RolloutRecord:
    """Wait until a broker can become ready at all; then the time begins again."""
    held = _hindrance(observed)
    if held is None:
        return _moved(record, RolloutStep.FIRST, observed, started_at=rfc3339(observed.now_s))
    return record.model_copy(update={"reason": held[0], "message": held[1]})


def _cleaning(record: RolloutRecord, observed: LedgerObservation) -> RolloutRecord:
    """Wait until the ConfigMaps of former revisions are deleted."""
    names = {None if one.revision is None else one.revision.name for one in observed.revisions}
    return _moved(record, RolloutStep.DONE, observed) if _is_settled(observed) and names == {record.good} else record


def _stay(record: RolloutRecord, observed: LedgerObservation) -> RolloutRecord:
    return record


_STEPS = {
    RolloutStep.FIRST: _first,
    RolloutStep.SETTLING: _settling,
    RolloutStep.REST: _rest,
    RolloutStep.HOLDING: _holding,
    RolloutStep.ROLLED_BACK: _stay,
    RolloutStep.CLEANING: _cleaning,
    RolloutStep.DONE: _stay,
}


def _moved(
    record: RolloutRecord,
    step: RolloutStep,
    observed: LedgerObservation,
    *,
    good: str | None = None,
    started_at: str | None = None,
    ready_mark: str | None = None,
    reason: str | None = None,
    message: str | None = None,
) -> RolloutRecord:
    """Return the record at another step, which begins now."""
    return RolloutRecord(
        step=step,
        revision=record.revision,
        good=good or record.good,
        started_at=started_at or record.started_at,
        step_started_at=rfc3339(observed.now_s),
        ready_mark=ready_mark,
        reason=reason,
        message=message,
    )


def _replicas(observed: LedgerObservation) -> int:
    """Return the number of brokers now: one that leaves counts, one without an address outside does not."""
    return observed.resource.spec.brokers.replicas if observed.replicas is None else observed.replicas


def _limit_s(observed: LedgerObservation) -> float:
    return duration_s(observed.resource.spec.brokers.rollout.ready_within)


def _first_name(observed: LedgerObservation) -> str:
    """Return the pod that Kubernetes replaces first: the one with the highest ordinal."""
    return pod_name(observed.resource.meta.name, BROKER, max(0, _replicas(observed) - 1))


def _first_pod(observed: LedgerObservation) -> ObservedPod | None:
    return next((pod for pod in observed.pods if pod.name == _first_name(observed)), None)


def _is_current(observed: LedgerObservation, pod: ObservedPod) -> bool:
    """Return whether a pod is ready and was created from the template of the StatefulSet."""
    there = observed.stateful_set
    if there is None or not there.current or not there.update_revision:
        return False
    return pod.ready and not pod.deleting and pod.revision == there.update_revision


def _runs(observed: LedgerObservation, record: RolloutRecord, pod: ObservedPod | None) -> bool:
    """Return whether a pod is ready with the revision of the record."""
    there = observed.stateful_set
    return pod is not None and there is not None and there.revision == record.revision and _is_current(observed, pod)


def _mark(pod: ObservedPod | None) -> str | None:
    return None if pod is None else f"{pod.uid} {pod.ready_since}"


def _is_settled(observed: LedgerObservation) -> bool:
    """Return whether the StatefulSet creates pods from no other template than its present one."""
    there = observed.stateful_set
    return there is not None and there.current and there.is_complete


def _hindrance(observed: LedgerObservation) -> tuple[str, str] | None:
    """Return why no broker can become ready, whatever its revision; None if nothing is known to prevent it."""
    if _replicas(observed) == 0:
        return "Stopped", "brokers.replicas is 0"
    conditions = () if observed.pool is None else observed.pool.status.conditions
    if any(one.type == "MetadataReachable" and one.status is Truth.FALSE for one in conditions):
        return "MetadataUnreachable", "the metadata store is unreachable"
    return None


def _said(observed: LedgerObservation, pod: ObservedPod | None) -> tuple[str, str]:
    """Return why a pod is not ready: the reason and the message of Kubernetes, and the last words of its process."""
    name = _first_name(observed) if pod is None else pod.name
    if pod is None:
        rejected = observed.stateful_set.rejected_pod if observed.stateful_set is not None else None
        return "FailedCreate", f"{name}: {rejected or 'the pod does not exist'}"
    reason, message = pod.blocked or (NOT_READY, "" if pod.failure else "its process does not answer")
    words = pod.failure if pod.failure is not None and pod.failure != f"{reason}: {message}" else None
    return reason, ": ".join(filter(None, [name, reason if pod.blocked else None, words or message]))


def _events(observed: LedgerObservation, before: RolloutRecord | None, after: RolloutRecord) -> list[Emit]:
    """Return an event for each begin and end. Each is emitted once, together with the change of the record."""
    if before is not None and (before.step, before.revision) == (after.step, after.revision):
        return []
    if after.step is RolloutStep.ROLLED_BACK:
        return [Emit(ROLLED_BACK, after.message or "", True)]
    if (
        after.step is RolloutStep.FIRST
        and is_under_way(after)
        and (before is None or before.revision != after.revision)
    ):
        return [Emit("RolloutStarted", f"revision {after.revision}: {_first_name(observed)} gets it first")]
    if after.step is RolloutStep.CLEANING and before is not None and before.good not in (None, after.good):
        return [Emit("RolloutFinished", f"all brokers have revision {after.good}")]
    return []


def _garbage(observed: LedgerObservation, record: RolloutRecord) -> list[DeleteConfigMap]:
    """Return the deletions of ConfigMaps that no pod uses, now or when it is created again."""
    if record.step not in (RolloutStep.CLEANING, RolloutStep.ROLLED_BACK) or not _is_settled(observed):
        return []
    kept = {record.good} | ({record.revision} if record.step is RolloutStep.CLEANING else set())
    return [
        DeleteConfigMap(one.name, one.uid)
        for one in observed.revisions
        if not one.used and (one.revision is None or one.revision.name not in kept)
    ]
