"""Plans a reconciliation of a ManagedLedger: children, then topics, cursors and policies through the brokers. Pure."""

from dataclasses import dataclass, replace

from quire_operator.api import GROUP
from quire_operator.api.managed_ledger import ManagedLedgerStatus
from quire_operator.api.managed_ledger_spec import DeletionPolicy
from quire_operator.builders.broker import NO_CREDENTIALS, BrokerFacts, broker_children, broker_hosts, revision_of
from quire_operator.builders.settings import PROXY_ROLE, PROXY_TOKEN
from quire_operator.plan import broker_scale, metadata_target, rejections, rollout
from quire_operator.plan.actions import (
    Action,
    Apply,
    DeleteMonitor,
    DeleteNamespace,
    DrainBroker,
    ForgetIsolation,
    NamespaceAction,
    SetFinalizer,
)
from quire_operator.plan.external import plan_external
from quire_operator.plan.failure_domains import failure_domains
from quire_operator.plan.jobs import JobsPlan, ending, plan_jobs
from quire_operator.plan.ledger_observation import LedgerObservation
from quire_operator.plan.managed_ledger_status import LedgerDecisions, render_status
from quire_operator.plan.namespace import contradictions, isolation_name, missing, to_load
from quire_operator.plan.pod_rules import managed_ledger_template_faults
from quire_operator.plan.proxy import plan_proxy
from quire_operator.plan.spec_checks import managed_ledger_faults, not_served_by_brokers

FINALIZER = f"{GROUP}/managedledger"
BUSY_REQUEUE_S = 2.0
IDLE_REQUEUE_S = 60.0


@dataclass(frozen=True, slots=True)
class LedgerPlan:
    """The plan from one observation. Actions run first, in order; then the status is written with a precondition."""

    actions: tuple[Action | NamespaceAction, ...]
    status: ManagedLedgerStatus
    requeue_s: float


def plan_managed_ledger(
    observed: LedgerObservation, default_image: str, jobs_image: str | None = None, *, any_template: bool = False
) -> LedgerPlan:
    """Return the plan. The images apply to resources that name none. `any_template` as in `plan_bookie`."""
    if observed.pool is not None:
        observed = replace(observed, pool=metadata_target.with_store_in_effect(observed.pool, observed.target))
    resource, spec = observed.resource, observed.resource.spec
    if resource.meta.deletion_timestamp is not None:
        leaving, held = _deletion(observed)
        at = LedgerDecisions(resource.status.rollout, deletion_held=held, jobs=JobsPlan(rows=resource.status.jobs))
        return LedgerPlan(leaving, render_status(observed, at), BUSY_REQUEUE_S)
    faults = tuple(managed_ledger_faults(resource, observed.pool, observed.bookies))
    faults += tuple(
        filter(None, [observed.certificate_fault, observed.password_fault, _proxy_token(observed), _rivalry(observed)])
    )
    faults += () if any_template else tuple(managed_ledger_template_faults(resource))
    not_served = tuple(not_served_by_brokers(resource))
    if observed.pool is None or faults or spec.paused:
        jobs = plan_jobs(observed, jobs_image, may_act=False, ready=False)
        at = LedgerDecisions(resource.status.rollout, faults, not_served=not_served, jobs=jobs)
        return LedgerPlan(jobs.actions, render_status(observed, at), IDLE_REQUEUE_S)
    actions: list[Action | NamespaceAction] = [] if FINALIZER in resource.meta.finalizers else [SetFinalizer(True)]
    external = plan_external(observed)
    facts = BrokerFacts(
        observed.pool, default_image, observed.pod_monitors, _credentials(observed), external=external.in_effect
    )
    actions += external.actions
    scale = broker_scale.scale(observed)
    scale = replace(scale, replicas=external.bounded(scale.replicas), waits=scale.waits or external.waits)
    observed = replace(observed, replicas=scale.replicas)
    course = rollout.course(observed, revision_of(resource, facts))
    applied = replace(course.applied, replicas=scale.replicas)
    actions += [Apply(child) for child in broker_children(resource, facts, applied)]
    actions += course.actions
    actions += plan_proxy(observed, default_image)
    # A drain needs a broker that responds.
    actions += [one for one in scale.actions if observed.namespace is not None or not isinstance(one, DrainBroker)]
    actions += [DeleteMonitor(*monitor) for monitor in observed.unwanted_monitors]
    actions += metadata_target.blocked_events(resource.status.conditions, observed.target)
    actions += rejections.blocked_events(resource.status.conditions, observed.pods, observed.stateful_set)
    wanting = [] if observed.namespace is None else missing(spec, observed.namespace, broker_hosts(resource))
    placed = [] if observed.namespace is None else failure_domains(observed)
    loads = [] if observed.namespace is None or wanting else to_load(spec, observed.namespace)
    against = () if observed.namespace is None else tuple(contradictions(spec, observed.namespace))
    idle = observed.namespace is not None and not wanting
    jobs = plan_jobs(observed, jobs_image, may_act=True, ready=idle)
    at = LedgerDecisions(
        course.record, faults, against, not_served, len(wanting), jobs=jobs, scale=scale, external=external
    )
    stopped = spec.brokers.replicas == 0
    rolls = rollout.needs_time(course.record) or scale.replicas != spec.brokers.replicas or external.waits is not None
    requeue_s = IDLE_REQUEUE_S if ((idle and not loads) or stopped) and not rolls else BUSY_REQUEUE_S
    return LedgerPlan(
        (*actions, *placed, *wanting, *loads, *jobs.actions),
        render_status(observed, at),
        min(requeue_s, jobs.requeue_s),
    )


def _credentials(observed: LedgerObservation) -> str | None:
    """Return the digest of the offload credentials. A temporarily missing Secret must not trigger a rolling restart."""
    offload = observed.resource.spec.offload
    if offload is None or offload.credentials_ref is None:
        return None
    before = None if observed.stateful_set is None else observed.stateful_set.credentials
    return observed.jobs.secrets.get(offload.credentials_ref.name) or before or NO_CREDENTIALS


def _proxy_token(observed: LedgerObservation) -> str | None:
    """Return the error if the proxies could not authenticate to the brokers: their pods would not start."""
    wanted = observed.resource.spec.brokers.authentication
    if wanted is None or not observed.lacks_proxy_token:
        return None
    return (
        f"proxy: Secret {wanted.token_key_secret} lacks {PROXY_TOKEN}: add it (`quire tokens create --subject "
        f"{PROXY_ROLE}`); until then no pod is changed"
    )


def _rivalry(observed: LedgerObservation) -> str | None:
    """Return the error if an older ManagedLedger has this namespace: two would overwrite each other indefinitely."""
    if observed.rival is None:
        return None
    namespace = observed.resource.spec.namespace
    return f"namespace {namespace} already belongs to ManagedLedger {observed.rival}: delete one of them"


def _deletion(observed: LedgerObservation) -> tuple[tuple[Action | NamespaceAction, ...], str | None]:
    """Return the actions for a resource that is being deleted, and why it still exists.

    By default topics and data stay, and with `--cascade=orphan` the brokers, too. With `Delete` the brokers delete the
    namespace while they still run.
    """
    if FINALIZER not in observed.resource.meta.finalizers:
        return (), None
    if observed.resource.meta.keeps_children:
        return (SetFinalizer(False),), None
    if observed.resource.spec.deletion_policy is DeletionPolicy.RETAIN:
        return (*_released(observed), SetFinalizer(False)), None
    if observed.rival is not None:
        return (SetFinalizer(False),), None
    if observed.pool is None:
        return (), (
            f"deletionPolicy is Delete, but without Bookie {observed.resource.spec.bookie_ref.name} it is unknown "
            "whether another ManagedLedger has the namespace: create the Bookie, or set deletionPolicy to Retain to "
            "keep the data"
        )
    if observed.namespace is None:
        return (), (
            "deletionPolicy is Delete, but no broker responds to delete the namespace: set brokers.replicas to 1, "
            "or deletionPolicy to Retain to keep the data"
        )
    if not observed.namespace.exists:
        return (*_released(observed), SetFinalizer(False)), None
    # Runs that read or offload its topics end before these are deleted; leftovers are collected with the resource.
    going, left = ending(observed)
    if left is not None:
        return going, left
    return (DeleteNamespace(observed.resource.spec.namespace),), "deleting the namespace with its topics"


def _released(observed: LedgerObservation) -> tuple[NamespaceAction, ...]:
    """Return the removal of isolation policies if a broker responds: other brokers may then serve the namespaces."""
    if observed.namespace is None:
        return ()
    names = list(observed.further_namespaces)
    if observed.namespace.isolation is not None and observed.rival is None:
        names.insert(0, observed.resource.spec.namespace)
    return tuple(ForgetIsolation(isolation_name(name)) for name in names)
