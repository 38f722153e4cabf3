"""Plans one reconciliation of a pool: its actions and its status. Pure; the caller performs and writes them.

Rules of every reconciliation: only a drain whose bookie the auditor found empty lowers the replicas of the StatefulSet;
one operation runs at a time; an action of an operation is taken only in the step that was read.
"""

from dataclasses import dataclass
from dataclasses import replace as changed

from quire_operator.api.bookie import BookieStatus
from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.api.quantities import duration_s
from quire_operator.builders import Manifest
from quire_operator.builders.auto_recovery import recovery_children
from quire_operator.builders.bookie import BookieFacts, bookie_children, volume_claims
from quire_operator.plan import autoscale, drain, expand, metadata_target, rejections, replace, roll, slow
from quire_operator.plan.actions import (
    Action,
    Apply,
    CancelDrain,
    DeleteMonitor,
    Emit,
    SetFinalizer,
    SetLostBookieDelay,
)
from quire_operator.plan.bookie_conditions import Decisions
from quire_operator.plan.bookie_status import capacity, render_status
from quire_operator.plan.deletion import FINALIZER, needed_by_others, plan_deletion
from quire_operator.plan.observation import PoolObservation
from quire_operator.plan.operations import Move, seconds_of, waiting
from quire_operator.plan.pod_rules import bookie_template_faults
from quire_operator.plan.replicas import allowed_replicas
from quire_operator.plan.spec_checks import bookie_faults, not_served_by_bookies
from quire_operator.plan.zones import annotations, lost_zone

BUSY_REQUEUE_S = 2.0
LACKING_REQUEUE_S = 5.0
"""While ledgers are under-replicated or volumes grow: no watch reports when the last one is done."""
IDLE_REQUEUE_S = 20.0
"""Otherwise: no watch reports the first under-replicated ledger either."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The plan from one observation. Actions run first, in order; then the status is written with a precondition."""

    actions: tuple[Action, ...]
    status: BookieStatus
    requeue_s: float


def plan_bookie(observed: PoolObservation, default_image: str, *, any_template: bool = False) -> PoolPlan:
    """Return the plan. `any_template`: pod templates may request privileges (`pod_rules`)."""
    # A blocked store counts as not declared: everything else follows the spec.
    observed = changed(observed, resource=metadata_target.with_store_in_effect(observed.resource, observed.target))
    spec, operation = observed.resource.spec, observed.resource.status.operation
    held = needed_by_others(observed)
    if observed.rejected is not None:
        return _rejected(observed, held)
    if observed.resource.meta.deletion_timestamp is not None and held is None:
        leaving = plan_deletion(observed)
        at = Decisions(leaving.operation, deletion_held=leaving.held)
        return PoolPlan(leaving.actions, render_status(observed, at), BUSY_REQUEUE_S)
    faults, not_served = (
        tuple(bookie_faults(observed.resource, observed.lacking_secret_keys)),
        tuple(not_served_by_bookies(observed.resource)),
    )
    faults += tuple(filter(None, [observed.certificate_fault]))
    faults += () if any_template else tuple(bookie_template_faults(observed.resource))
    if faults or spec.paused:
        at = Decisions(operation, faults, not_served, deletion_held=held)
        return PoolPlan((), render_status(observed, at), IDLE_REQUEUE_S)
    wanted = volume_claims(observed.resource, _facts(observed, default_image, 0))
    move, blocker, cannot_grow = _operate(observed, wanted)
    move = _with_deadline(observed, move)
    actions: list[Action] = [] if FINALIZER in observed.resource.meta.finalizers else [SetFinalizer(True)]
    actions += [
        *_children(observed, default_image, wanted),
        *annotations(observed),
        *_cluster_settings(observed),
        *move.actions,
    ]
    actions += [DeleteMonitor(*monitor) for monitor in observed.unwanted_monitors]
    actions += [*_events(observed, operation, move.operation), *_holding(observed, held)]
    actions += metadata_target.blocked_events(observed.resource.status.conditions, observed.target)
    actions += rejections.blocked_events(observed.resource.status.conditions, observed.pods, observed.stateful_set)
    # The next operation begins in the next reconciliation: a pool that removes several bookies is not quiet in between.
    work_left = _work_left(observed) or (operation is not None and move.operation is None)
    idle = not work_left and operation is None and move.operation is None and blocker is None
    actions += autoscale.growing_claims(observed)
    if held is None:  # a pool that is being deleted gets no more bookies
        actions += autoscale.replicas(observed, capacity(observed), idle=idle)
    cannot_grow = cannot_grow or expand.failure(observed) or autoscale.cannot_grow(observed)
    actions += expand.ended_events(observed)
    status = render_status(observed, Decisions(move.operation, (), not_served, blocker, cannot_grow, work_left, held))
    actions += slow.events(observed, status.slow_bookies)
    if work_left or move.operation is not None:
        requeue_s = BUSY_REQUEUE_S
    else:
        waits = lacks_replicas(observed) or bool(expand.growing(observed))
        requeue_s = LACKING_REQUEUE_S if waits else IDLE_REQUEUE_S
    return PoolPlan(tuple(actions), status, requeue_s)


def _rejected(observed: PoolObservation, held: str | None) -> PoolPlan:
    """Return the plan after a rejected write: no actions. The operation stays where it is, and says why."""
    operation = observed.resource.status.operation
    if operation is not None and observed.rejected is not None:
        operation = waiting(operation, f"waiting until the API server accepts a write: {observed.rejected.message}")
    not_served = tuple(not_served_by_bookies(observed.resource))
    at = Decisions(operation, (), not_served, work_left=_work_left(observed), deletion_held=held)
    return PoolPlan((), render_status(observed, at), BUSY_REQUEUE_S)


def lacks_replicas(observed: PoolObservation) -> bool:
    """Return whether ledgers are known to be under-replicated, so that waiting helps."""
    return observed.cluster is not None and observed.cluster.under_replicated > 0


def _operate(observed: PoolObservation, wanted: list[Manifest]) -> tuple[Move, tuple[str, str] | None, str | None]:
    """Advance the recorded operation, or begin the most urgent one. Also return what blocks a drain or an expansion."""
    operation = observed.resource.status.operation
    if operation is not None:
        taking_its_place = _preempting(operation, observed, wanted)
        if taking_its_place is not None:
            return taking_its_place, None, None
        if operation.type is OperationType.DRAIN:
            return drain.advance(operation, observed), drain.blocker_of(operation, observed), None
        if operation.type is OperationType.REPLACE:
            return replace.advance(operation, observed), None, None
        if operation.type is OperationType.ROLL:
            return roll.advance(operation, observed), None, None
        return expand.advance(operation, observed, wanted), None, expand.blocker(observed, wanted)
    cannot_grow = expand.blocker(observed, wanted)
    urgent = _replacement(observed)
    if urgent is not None:
        return Move(urgent), None, cannot_grow
    left = replace.forgettable(observed)
    if left is not None:
        return Move(replace.begin_forgetting(observed, *left)), None, cannot_grow
    changing = _changing(observed, wanted)
    if changing is not None:
        return Move(changing), None, cannot_grow
    if observed.stateful_set is None:
        return Move(None), None, cannot_grow
    if not drain.is_wanted(observed):
        slowest = slow.wanted(observed, slow.counted(observed))
        return Move(None if slowest is None else replace.begin_slow(observed, slowest)), None, cannot_grow
    blocker = drain.blocker(observed)
    return Move(drain.begin(observed) if blocker is None else None), blocker, cannot_grow


def _replacement(observed: PoolObservation, but: str | None = None) -> Operation | None:
    """Return the replacement of a lost bookie unless it is blocked; skips the bookie in pod `but`."""
    lost = replace.wanted(observed, but)
    return replace.begin(observed, lost) if lost is not None and replace.blocker(observed, lost) is None else None


def _changing(observed: PoolObservation, wanted: list[Manifest]) -> Operation | None:
    """Return an expansion if volumes must grow, else a roll if the template changed, else None."""
    if expand.blocker(observed, wanted) is None and expand.is_wanted(observed, wanted):
        return expand.begin(observed)
    return roll.begin(observed) if roll.outdated(observed) else None


def _preempting(operation: Operation, observed: PoolObservation, wanted: list[Manifest]) -> Move | None:
    """Return the operation that preempts the recorded one, which begins again afterwards if it is still wanted.

    A lost bookie would block the other operations indefinitely, so its replacement goes first wherever nothing is half
    done: a drain that has removed nothing yet (its drain is cancelled meanwhile), also one for the replacement of a
    slow bookie, an expansion whose claims were only requested to grow, a roll between two pods. The last step of a
    replacement waits for no pod. It yields to another replacement and, while it waits for an administrator to accept a
    loss, to any other operation; the old id is still removed later.
    """
    forgetting = operation.type is OperationType.REPLACE and operation.step is Step.REMOVING_COOKIE
    between = operation.type is OperationType.ROLL and operation.step is not Step.REPLACING
    nothing_yet = drain.takes_nothing_yet(operation) or replace.copies_slow(operation)
    if not (forgetting or between or operation.step is Step.RESIZING_CLAIMS or nothing_yet):
        return None
    leaving = operation.pod if nothing_yet or operation.type is OperationType.DRAIN else None
    urgent = _replacement(observed, leaving)
    if urgent is None and forgetting and observed.cluster is not None and observed.cluster.unaccepted:
        urgent = _changing(observed, wanted)
    if urgent is None:
        return None
    return Move(urgent, (CancelDrain(operation.bookie or ""),) if leaving is not None else ())


def _facts(observed: PoolObservation, default_image: str, replicas: int) -> BookieFacts:
    operation = observed.resource.status.operation
    draining = operation is not None and operation.type in (OperationType.DRAIN, OperationType.REPLACE)
    return BookieFacts(
        replicas=replicas,
        default_image=default_image,
        may_disrupt=observed.fully_replicated and not draining and lost_zone(observed) is None,
        pod_monitors=observed.pod_monitors,
        avoid_node=None if operation is None else operation.avoid_node,
    )


def _children(observed: PoolObservation, default_image: str, wanted: list[Manifest]) -> list[Action]:
    """Return every child in its desired state; applying an unchanged one has no effect."""
    operation = observed.resource.status.operation
    replicas = allowed_replicas(observed)
    if operation is not None:
        replicas = drain.replicas_during(operation, replicas)
    found = bookie_children(observed.resource, _facts(observed, default_image, replicas))
    found += recovery_children(observed.resource, default_image, observed.pod_monitors)
    return [Apply(_with_present_claims(observed, child)) for child in found if not _is_left_out(operation, child)]


def _is_left_out(operation: Operation | None, child: Manifest) -> bool:
    """Return whether the child must not be applied: a StatefulSet that is being deleted around its pods."""
    return child["kind"] == "StatefulSet" and operation is not None and operation.step is Step.ORPHANING


def _with_present_claims(observed: PoolObservation, child: Manifest) -> Manifest:
    """Keep the existing claim templates, which are immutable, until an expansion recreates the StatefulSet.

    The mounts of the pods must match them: mounts of volumes without a claim template are left out, too.
    """
    there = observed.stateful_set
    if child["kind"] != "StatefulSet" or there is None or not there.claim_templates:
        return child
    present = {template["metadata"]["name"] for template in there.claim_templates}
    spec = child["spec"] | {"volumeClaimTemplates": list(there.claim_templates)}
    missing = {claim["metadata"]["name"] for claim in child["spec"]["volumeClaimTemplates"]} - present
    return child | {"spec": _without_mounts(spec, missing) if missing else spec}


def _without_mounts(spec: Manifest, names: set[str]) -> Manifest:
    """Remove the mounts of volumes that no claim template has yet."""
    template = spec["template"]
    containers = [
        container | {"volumeMounts": [m for m in container.get("volumeMounts", ()) if m["name"] not in names]}
        for container in template["spec"]["containers"]
    ]
    return spec | {"template": template | {"spec": template["spec"] | {"containers": containers}}}


def _cluster_settings(observed: PoolObservation) -> list[Action]:
    """Return changes of the settings that the metadata store keeps for the whole cluster."""
    if observed.cluster is None or observed.lost_bookie_delay_s is None:
        return []
    wanted_s = round(duration_s(observed.resource.spec.auto_recovery.lost_bookie_delay))
    return [] if observed.lost_bookie_delay_s == wanted_s else [SetLostBookieDelay(wanted_s)]


def _work_left(observed: PoolObservation) -> bool:
    """Return whether pods or bookies are missing, or the controller has not observed the latest StatefulSet."""
    wanted = observed.stateful_set
    if wanted is None or not wanted.current:
        return True
    return (
        len(observed.bookies) < max(wanted.replicas, observed.resource.spec.replicas)
        or len(observed.pods) > wanted.replicas
    )


def _events(observed: PoolObservation, before: Operation | None, after: Operation | None) -> list[Action]:
    """Return events for starts, steps and ends. Each is emitted once, together with the change of the record."""
    if before is None and after is not None:
        return [Emit(f"{after.type.value}Started", _about(after))]
    if before is not None and after is None:
        return [Emit(f"{before.type.value}Finished", _about(before))]
    if before is None or after is None:
        return []
    found: list[Action] = []
    if before.type is not after.type:
        found.append(Emit(f"{after.type.value}Started", _about(after)))
    elif before.step is not after.step:
        found.append(Emit(f"{after.type.value}{after.step.value}", after.message or _about(after)))
    if after.late and not before.late:
        deadline = observed.resource.spec.scale_down.deadline
        found.append(
            Emit(f"{after.type.value}Late", f"{_about(after)} takes longer than {deadline}; it continues", True)
        )
    return found


def _holding(observed: PoolObservation, held: str | None) -> list[Action]:
    """Return an event when a deletion begins to be held; afterwards the condition shows it."""
    reported = any(one.type == "Ready" and one.reason == "DeletionHeld" for one in observed.resource.status.conditions)
    return [] if held is None or reported else [Emit("DeletionHeld", held, True)]


def _with_deadline(observed: PoolObservation, move: Move) -> Move:
    """Mark an operation that exceeds its deadline as late in the record, so that the event is emitted once."""
    operation = move.operation
    if operation is None or operation.late or operation.type not in (OperationType.DRAIN, OperationType.REPLACE):
        return move
    age_s = observed.now_s - seconds_of(operation.started_at)
    if age_s <= duration_s(observed.resource.spec.scale_down.deadline):
        return move
    return Move(operation.model_copy(update={"late": True}), move.actions)


def _about(operation: Operation) -> str:
    return " ".join(filter(None, [operation.type.value, operation.pod, operation.bookie]))
