"""Decides how many brokers there are now: more at once, fewer one by one, each drained before its pod goes. Pure.

The last broker leaves first, because a StatefulSet removes the highest ordinal. It hands its bundles to others while it
serves (`DrainBroker`); when it has none left, the StatefulSet gets one less. A pod whose process does not run is
removed without a drain, and one whose drain makes no progress for `drainDeadline`, unless no other broker takes
bundles: the others recover the ledgers of its topics. While another broker is not ready, or a change of their pods is
under way, none that serves leaves, so that never two are out. `replicas: 0` stops all of them at once: no broker would
take the bundles.
"""

from dataclasses import dataclass

from quire_operator.api.managed_ledger import BrokerDrain
from quire_operator.api.quantities import duration_s
from quire_operator.builders.broker import broker_host
from quire_operator.builders.naming import BROKER, ordinal_of, pod_name
from quire_operator.plan import rollout
from quire_operator.plan.actions import DeletePod, DrainBroker, Emit
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.observation import ObservedPod
from quire_operator.plan.operations import rfc3339, seconds_of


@dataclass(frozen=True, slots=True)
class Scale:
    """How many pods the StatefulSet gets, what to do, and what to record."""

    replicas: int
    drain: BrokerDrain | None = None
    actions: tuple[DrainBroker | DeletePod | Emit, ...] = ()
    waits: str | None = None
    """Why no broker leaves although fewer are declared."""
    late: bool = False
    """The drain makes no progress, and cannot be given up."""


def scale(observed: LedgerObservation) -> Scale:
    """Return the scale of this reconciliation."""
    wanted, there = observed.resource.spec.brokers.replicas, observed.stateful_set
    if there is None or there.replicas <= wanted or wanted == 0:
        return _kept(observed, wanted)
    name = pod_name(observed.resource.meta.name, BROKER, there.replicas - 1)
    pod = next((one for one in observed.pods if one.name == name), None)
    if pod is None or not _may_serve(pod):
        return Scale(there.replicas - 1)
    waits = _hindrance(observed, there.replicas - 1)
    if waits is not None:
        return Scale(there.replicas, _drain_of(observed, pod), waits=waits)
    return _drained(observed, pod, there.replicas)


def _drained(observed: LedgerObservation, pod: ObservedPod, replicas: int) -> Scale:
    """Drain a broker that serves, and let it go when it has nothing left."""
    before, state = _drain_of(observed, pod), observed.leaving
    if state is not None and state.draining and state.bundles == 0:
        gone = Emit("BrokerDrained", f"{pod.name} handed over its bundles, {state.moved} since its start")
        return Scale(replicas - 1, actions=(gone,))
    now = rfc3339(observed.now_s)
    record = before or BrokerDrain(pod=pod.name, uid=pod.uid, started_at=now)
    if state is not None:
        record = record.model_copy(update={"moved": state.moved, "bundles": state.bundles, "message": ""})
    if before is None or (before.moved, before.bundles) != (record.moved, record.bundles):
        record = record.model_copy(update={"progress_at": now})
    late = _is_late(observed, record)
    if late and (state is None or state.others):
        limit = observed.resource.spec.brokers.drain_deadline
        text = f"{pod.name} ends with {record.bundles} bundles left: its drain made no progress for {limit}"
        return Scale(replicas - 1, record, (Emit("BrokerDrainGivenUp", text, warning=True),))
    if state is None:
        return Scale(replicas, record.model_copy(update={"message": "it does not respond"}))
    if not state.others:
        return Scale(replicas, record.model_copy(update={"message": "no other broker takes bundles"}), late=late)
    begun = () if before is not None else (Emit("BrokerDrains", f"{pod.name} hands over {state.bundles} bundles"),)
    return Scale(replicas, record, (*begun, DrainBroker(broker_host(observed.resource.meta, pod.name))))


def _is_late(observed: LedgerObservation, drain: BrokerDrain) -> bool:
    """Return whether the drain has made no progress for too long."""
    since_s = seconds_of(drain.progress_at or drain.started_at)
    return observed.now_s - since_s > duration_s(observed.resource.spec.brokers.drain_deadline)


def _drain_of(observed: LedgerObservation, pod: ObservedPod) -> BrokerDrain | None:
    """Return the recorded drain, if it is that of this pod."""
    record = observed.resource.status.drain
    return record if record is not None and record.uid == pod.uid else None


def _may_serve(pod: ObservedPod) -> bool:
    """Return whether the process of a pod may have bundles: one that ends hands them over by itself."""
    return not pod.deleting and (pod.ready or (pod.blocked is None and pod.failure is None))


def _hindrance(observed: LedgerObservation, staying: int) -> str | None:
    """Return why no broker may leave now. `staying`: number of the brokers that stay, or leave later."""
    if any(ordinal_of(pod.name) > staying for pod in observed.pods):
        return "a former broker still ends"
    if rollout.is_under_way(observed.resource.status.rollout):
        return "a change of the brokers is under way"
    ready = {ordinal_of(pod.name) for pod in observed.pods if pod.ready and not pod.deleting}
    away = [pod_name(observed.resource.meta.name, BROKER, one) for one in range(staying) if one not in ready]
    return f"{', '.join(away)} is not ready" if away else None


def _kept(observed: LedgerObservation, wanted: int) -> Scale:
    """Restart a broker whose drain was withdrawn: until then it takes no bundles. The record stays until it is gone."""
    record = observed.resource.status.drain
    pod = next((one for one in observed.pods if record is not None and one.uid == record.uid), None)
    if record is None or pod is None or ordinal_of(pod.name) >= wanted:
        return Scale(wanted)
    record = record.model_copy(update={"message": "it stays, so it is started again"})
    return Scale(wanted, record, () if pod.deleting else (DeletePod(pod.name, pod.uid),))


def progress(drain: BrokerDrain) -> str:
    """Return the figures of a drain as text."""
    figures = f"{drain.pod} has {drain.bundles} bundles left, {drain.moved} were handed over since its start"
    return figures + (f": {drain.message}" if drain.message else "")
