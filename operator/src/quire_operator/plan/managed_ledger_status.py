"""Renders the status of a `ManagedLedger` from an observation and the plan's decisions. Pure.

`judged` computes the state and all conditions together, so that these invariants hold (see `test_conditions_agree`):

* Ready=True implies Writable=True, PolicyApplied=True, Degraded=False, Stalled=False, WriteRejected=False,
  PodsBlocked=False and RolledBack=False.
* Ready is not True implies Reconciling=True or Stalled=True, unless it is paused or has no brokers by its spec.
* Reconciling=True and Stalled=True exclude each other.
* The state Open implies Ready=True; the state Degraded implies Degraded=True.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from quire_operator.api.conditions import Finding, Truth, moved_on
from quire_operator.api.managed_ledger import (
    BrokerRow,
    LedgerState,
    ManagedLedgerStatus,
    RolloutRecord,
    RolloutStep,
    SlowestCursor,
    TopicRow,
)
from quire_operator.api.quantities import duration_s
from quire_operator.builders.broker import service_url
from quire_operator.builders.naming import BROKER, selector_text
from quire_operator.builders.tuning import derived_of_brokers
from quire_operator.plan import metadata_target, rejections, rollout
from quire_operator.plan.bookie_conditions import METADATA_SILENT, finding
from quire_operator.plan.broker_load import broker_load
from quire_operator.plan.broker_scale import Scale, progress
from quire_operator.plan.external import ExternalPlan
from quire_operator.plan.jobs import JobsPlan
from quire_operator.plan.ledger_observation import LedgerObservation, ObservedTopic
from quire_operator.plan.operations import rfc3339, seconds_of
from quire_operator.plan.proxy import proxies, proxy_findings, proxy_problem, proxy_status

NO_BROKER = "no broker responds"


@dataclass(frozen=True, slots=True)
class LedgerDecisions:
    """Decisions of the plan that the status needs in addition to the observation."""

    rollout: RolloutRecord | None = None
    """The latest change of the brokers, after this reconciliation."""
    faults: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    not_served: tuple[str, ...] = ()
    missing: int = 0
    """Number of declared policies, topics and cursors that do not exist yet."""
    deletion_held: str | None = None
    external: ExternalPlan | None = None
    """None if nothing is changed."""
    scale: Scale | None = None
    """None if nothing is changed."""
    jobs: JobsPlan = field(default_factory=JobsPlan)


def render_status(observed: LedgerObservation, at: LedgerDecisions) -> ManagedLedgerStatus:
    """Return the status after this reconciliation."""
    resource = observed.resource
    topics = {} if observed.namespace is None else dict(observed.namespace.topics)
    declared = [topic.name for topic in resource.spec.topics]
    owners = [topic.owner for topic in topics.values()]
    generation = resource.meta.generation
    in_one_word, conditions = judged(observed, at)
    return ManagedLedgerStatus(
        observed_generation=generation,
        state=in_one_word,
        service_url=service_url(resource),
        replicas=len(observed.pods),
        ready=sum(pod.ready for pod in observed.pods),
        topic_count=None if observed.namespace is None else len(topics),
        backlog=None if observed.namespace is None else largest_backlog(topics.values()),
        under_replicated=observed.under_replicated,
        broker_load=broker_load(observed),
        brokers=tuple(BrokerRow(pod=pod.name, ready=pod.ready, topics=owners.count(pod.name)) for pod in observed.pods),
        topics=tuple(_row(name, topics[name]) for name in declared if name in topics),
        selector=selector_text(resource.meta.name, BROKER),
        external=resource.status.external if at.external is None else at.external.rows,
        proxy=proxy_status(observed),
        drain=resource.status.drain if at.scale is None else at.scale.drain,
        rollout=at.rollout,
        derived_settings=derived_of_brokers(resource.spec) or None,
        jobs=at.jobs.rows,
        conditions=moved_on(resource.status.conditions, conditions, rfc3339(observed.now_s), generation),
    )


def largest_backlog(topics: Iterable[ObservedTopic]) -> int | None:
    """Return the largest known backlog in entries; None if all known ones are 0 and some are not known."""
    all_of_them = [backlog for topic in topics for backlog in topic.cursors.values()]
    largest = max((backlog for backlog in all_of_them if backlog is not None), default=0)
    return None if not largest and None in all_of_them else largest


def _row(name: str, topic: ObservedTopic) -> TopicRow:
    known = [(backlog, name) for name, backlog in topic.cursors.items() if backlog is not None]
    slowest = max(known, default=None)
    return TopicRow(
        name=name,
        owner=topic.owner,
        position=topic.position,
        entries=topic.entries,
        size_bytes=topic.size_bytes,
        slowest_cursor=None if slowest is None else SlowestCursor(name=slowest[1], backlog=slowest[0]),
    )


def judged(observed: LedgerObservation, at: LedgerDecisions) -> tuple[LedgerState, list[Finding]]:
    """Return the state and all conditions, which never contradict each other."""
    writable, applied = _writable(observed), _applied(observed, at)
    blocked = rejections.blocked(observed.pods, observed.stateful_set)
    degraded, stalled = _degraded(observed, at, writable, blocked), _stalled(observed, at)
    ready = _ready(observed, at, writable, degraded)
    found = [
        ready,
        degraded,
        _reconciling(observed, at, ready, stalled),
        stalled,
        rejections.rejected(observed.rejected),
        blocked,
        _rolled_back(at),
        applied,
        writable,
        _replicated(observed),
        _cursors(observed),
    ]
    found += [*at.jobs.findings, *proxy_findings(observed)]
    if _leads_around(observed):
        message = (
            f"brokers require tokens, but the bookies of {observed.resource.spec.bookie_ref.name} do not authenticate "
            "clients: set authentication of the Bookie, or tls.clientAuthentication"
        )
        found.append(Finding(type="BookiesUnguarded", status=Truth.TRUE, reason="NoAuthentication", message=message))
    if at.not_served:
        fields = ", ".join(at.not_served)
        found.append(Finding(type="NotYetServed", status=Truth.TRUE, reason="FieldsWithoutEffect", message=fields))
    return _state(observed, at, ready, degraded), found


def _state(observed: LedgerObservation, at: LedgerDecisions, ready: Finding, degraded: Finding) -> LedgerState:
    """Return the state in one word; the one that needs attention first wins."""
    spec = observed.resource.spec
    if observed.resource.meta.deletion_timestamp is not None:
        return LedgerState.DELETING
    if at.faults:
        return LedgerState.INVALID
    if spec.paused:
        return LedgerState.PAUSED
    if spec.brokers.replicas == 0:
        return LedgerState.STOPPED
    if _is_new(observed):
        return LedgerState.CREATING
    if degraded.status is Truth.TRUE:
        return LedgerState.DEGRADED
    if ready.status is Truth.TRUE and at.scale is not None and at.scale.drain is not None:
        return LedgerState.DRAINING
    return LedgerState.OPEN if ready.status is Truth.TRUE else LedgerState.CREATING


def _is_new(observed: LedgerObservation) -> bool:
    """Return whether no broker has ever responded, as far as known."""
    return observed.stateful_set is None or (observed.namespace is None and not any(pod.ready for pod in observed.pods))


def _degraded(observed: LedgerObservation, at: LedgerDecisions, writable: Finding, blocked: Finding) -> Finding:
    """Check for everything that makes it less than its spec declares, with the reason of the first."""
    problems: list[tuple[str, str]] = []
    if observed.rejected is not None:
        problems.append((observed.rejected.reason, observed.rejected.message))
    if blocked.status is Truth.TRUE:
        problems.append((blocked.reason, blocked.message))
    problems += filter(None, [metadata_target.blocker(observed.target), rollout.problem(observed, at.rollout)])
    if observed.namespace is None and observed.resource.spec.brokers.replicas and not _is_new(observed):
        problems.append(("NoBroker", NO_BROKER))
    away = _away(observed)
    if away:
        within = observed.resource.spec.brokers.rollout.ready_within
        problems.append(("BrokersAway", f"not ready for more than {within}: {', '.join(away)}"))
    if at.scale is not None and at.scale.late and at.scale.drain is not None:
        problems.append(("DrainStalled", progress(at.scale.drain)))
    if (away_proxies := proxy_problem(observed)) is not None:
        problems.append(away_proxies)
    if at.contradictions:
        problems.append(("Contradiction", "; ".join(at.contradictions)))
    if writable.status is Truth.FALSE:
        problems.append((writable.reason, writable.message))
    reason = problems[0][0] if problems else ""
    return finding("Degraded", bool(problems), reason, "Well", "; ".join(text for _, text in problems))


def _away(observed: LedgerObservation) -> list[str]:
    """Return the pods that have not been ready for longer than a new one may take."""
    limit_s = duration_s(observed.resource.spec.brokers.rollout.ready_within)
    late = [pod for pod in observed.pods if not pod.ready and not pod.deleting and pod.ready_since is not None]
    return [pod.name for pod in late if observed.now_s - seconds_of(pod.ready_since or "") > limit_s]


def _stalled(observed: LedgerObservation, at: LedgerDecisions) -> Finding:
    """Check for problems that need a change by an administrator, with the reason of the first."""
    if at.faults:
        return finding("Stalled", True, "InvalidSpec", "", "; ".join(at.faults))
    if observed.rejected is not None:
        return finding("Stalled", True, observed.rejected.reason, "", observed.rejected.message)
    blocker = metadata_target.blocker(observed.target) or rollout.problem(observed, at.rollout)
    if blocker is not None and not observed.resource.spec.paused:
        return finding("Stalled", True, blocker[0], "", blocker[1])
    if at.contradictions:
        return finding("Stalled", True, "Contradiction", "", "; ".join(at.contradictions))
    return finding("Stalled", False, "", "NotStalled")


def _rolled_back(at: LedgerDecisions) -> Finding:
    """Check whether the brokers run a former revision because the declared one did not work."""
    record = at.rollout
    if record is None or record.step is not RolloutStep.ROLLED_BACK:
        return finding("RolledBack", False, "", "NotRolledBack")
    return finding("RolledBack", True, record.reason or rollout.NOT_READY, "", record.message or "")


def _reconciling(observed: LedgerObservation, at: LedgerDecisions, ready: Finding, stalled: Finding) -> Finding:
    """Check whether the operator or the cluster still works towards the spec."""
    if stalled.status is Truth.TRUE:
        return finding("Reconciling", False, "", "Stalled")
    if observed.resource.spec.paused:
        return finding("Reconciling", False, "", "Paused", "spec.paused is set: no changes are made")
    if ready.reason == "Stopped":
        return finding("Reconciling", False, "", "Stopped", ready.message)
    if ready.status is not Truth.TRUE:
        return finding("Reconciling", True, ready.reason, "", ready.message)
    declared = observed.resource.spec.brokers.replicas
    if at.rollout is not None and rollout.is_under_way(at.rollout):
        step = f"revision {at.rollout.revision} of the brokers is at step {at.rollout.step.value}"
        message = ": ".join(filter(None, [step, at.rollout.message]))
        return finding("Reconciling", True, "RollingOut", "", message)
    if at.scale is not None and at.scale.drain is not None:
        return finding("Reconciling", True, "Draining", "", progress(at.scale.drain))
    if at.scale is not None and at.scale.replicas != declared:
        waits = f"{at.scale.replicas} brokers are there, {declared} are declared"
        return finding("Reconciling", True, "Scaling", "", ": ".join(filter(None, [waits, at.scale.waits])))
    if at.external is not None and at.external.waits is not None:
        return finding("Reconciling", True, "ExternalAddress", "", at.external.waits)
    if observed.stateful_set is not None and not observed.stateful_set.current:
        return finding("Reconciling", True, "Updating", "", "the StatefulSet of the brokers changes")
    serving = sum(pod.ready for pod in observed.pods)
    if serving < declared:
        return finding("Reconciling", True, "BrokersNotReady", "", f"{serving} of {declared} brokers are ready")
    of_proxies = proxies(observed)
    if of_proxies is not None and of_proxies.lacking is not None:
        return finding("Reconciling", True, "ProxiesNotReady", "", of_proxies.lacking)
    return finding("Reconciling", False, "", "NothingToDo", ready.message)


def _leads_around(observed: LedgerObservation) -> bool:
    """Return whether clients can bypass the brokers' authentication by connecting to their bookies."""
    if observed.pool is None or observed.resource.spec.brokers.authentication is None:
        return False
    tls = observed.pool.spec.tls
    return observed.pool.spec.authentication is None and not (tls is not None and tls.client_authentication)


def _ready(observed: LedgerObservation, at: LedgerDecisions, writable: Finding, degraded: Finding) -> Finding:
    """Check that the topics can be written and read as declared. The most urgent reason wins."""
    if at.deletion_held is not None:
        return finding("Ready", False, "", "DeletionHeld", at.deletion_held)
    if at.faults:
        return finding("Ready", False, "", "InvalidSpec", "; ".join(at.faults))
    if observed.rejected is not None:
        return finding("Ready", False, "", observed.rejected.reason, observed.rejected.message)
    if observed.resource.spec.brokers.replicas == 0:
        return finding("Ready", False, "", "Stopped", "brokers.replicas is 0")
    if observed.namespace is None:
        return finding("Ready", False, "", "NoBroker", "; ".join(dict.fromkeys([NO_BROKER, *_texts(degraded)])))
    if degraded.status is Truth.TRUE:
        return finding("Ready", False, "", degraded.reason, degraded.message)
    if at.missing:
        message = f"{at.missing} declared policies, topics or cursors do not exist yet"
        return finding("Ready", False, "", "NotAllThere", message)
    if writable.status is Truth.UNKNOWN:
        return finding("Ready", None, "", "", writable.message)
    return finding("Ready", True, "Serving", "", f"{len(observed.namespace.topics)} topics")


def _texts(degraded: Finding) -> list[str]:
    return degraded.message.split("; ") if degraded.message else []


def _applied(observed: LedgerObservation, at: LedgerDecisions) -> Finding:
    if observed.namespace is None:
        return finding("PolicyApplied", None, "", "", NO_BROKER)
    if at.contradictions:
        return finding("PolicyApplied", False, "", "Contradiction", "; ".join(at.contradictions))
    return finding("PolicyApplied", not at.missing, "Applied", "UnderWay")


def _writable(observed: LedgerObservation) -> Finding:
    """Check that new ledgers can be created: enough bookies are writable for the ensemble."""
    ensemble = observed.resource.spec.replication.ensemble
    if observed.writable_bookies is None:
        return finding("Writable", None, "", "", METADATA_SILENT)
    message = f"{observed.writable_bookies} bookies are writable, the ensemble is {ensemble}"
    return finding("Writable", observed.writable_bookies >= ensemble, "EnoughBookies", "TooFewBookies", message)


def _replicated(observed: LedgerObservation) -> Finding:
    if observed.under_replicated is None:
        return finding("FullyReplicated", None, "", "", METADATA_SILENT)
    message = (
        f"{observed.under_replicated} ledgers of the cluster are under-replicated" if observed.under_replicated else ""
    )
    return finding("FullyReplicated", not observed.under_replicated, "AllReplicas", "LedgersLackReplicas", message)


def _cursors(observed: LedgerObservation) -> Finding:
    """Check that every declared cursor exists; backlogs are in the rows of the topics."""
    if observed.namespace is None:
        return finding("CursorsHealthy", None, "", "", NO_BROKER)
    gone = [
        f"{topic.name}/{cursor.name}"
        for topic in observed.resource.spec.topics
        for cursor in topic.cursors
        if topic.name not in observed.namespace.topics
        or cursor.name not in observed.namespace.topics[topic.name].cursors
    ]
    named = ", ".join(gone[:5]) + (", ..." if len(gone) > 5 else "")
    return finding("CursorsHealthy", not gone, "AllThere", "Missing", named)
