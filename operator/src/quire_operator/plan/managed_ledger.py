"""Plans a reconciliation of a ManagedLedger: children, then topics, cursors and policies through the brokers. Pure."""

from dataclasses import dataclass

from quire_operator.api import GROUP
from quire_operator.api.managed_ledger import ManagedLedgerStatus
from quire_operator.api.managed_ledger_spec import DeletionPolicy
from quire_operator.builders.broker import NO_CREDENTIALS, BrokerFacts, broker_children, broker_hosts
from quire_operator.plan.actions import (
    Action,
    Apply,
    DeleteMonitor,
    DeleteNamespace,
    ForgetIsolation,
    NamespaceAction,
    SetFinalizer,
)
from quire_operator.plan.jobs import JobsPass, ending, plan_jobs
from quire_operator.plan.ledger_seen import LedgerSeen
from quire_operator.plan.managed_ledger_status import LedgerStanding, render_status
from quire_operator.plan.namespace import contradictions, isolation_name, missing, to_load
from quire_operator.plan.pod_rules import managed_ledger_template_faults
from quire_operator.plan.spec_checks import managed_ledger_faults, not_served_by_brokers

FINALIZER = f"{GROUP}/managedledger"
BUSY_REQUEUE_S = 2.0
IDLE_REQUEUE_S = 60.0


@dataclass(frozen=True, slots=True)
class LedgerPass:
    """The plan from one observation. Actions run first, in order; then the status is written with a precondition."""

    actions: tuple[Action | NamespaceAction, ...]
    status: ManagedLedgerStatus
    requeue_s: float


def plan_managed_ledger(
    seen: LedgerSeen, default_image: str, jobs_image: str | None = None, *, any_template: bool = False
) -> LedgerPass:
    """Return the plan. The images apply to resources that name none. `any_template` as in `plan_bookie`."""
    resource, spec = seen.resource, seen.resource.spec
    if resource.meta.deletion_timestamp is not None:
        leaving, held = _deletion(seen)
        at = LedgerStanding(deletion_held=held, jobs=JobsPass(rows=resource.status.jobs))
        return LedgerPass(leaving, render_status(seen, at), BUSY_REQUEUE_S)
    faults = tuple(managed_ledger_faults(resource, seen.pool, seen.bookies))
    faults += tuple(filter(None, [seen.certificate_fault, seen.password_fault, _rivalry(seen)]))
    faults += () if any_template else tuple(managed_ledger_template_faults(resource))
    not_served = tuple(not_served_by_brokers(resource))
    if seen.pool is None or faults or spec.paused:
        jobs = plan_jobs(seen, jobs_image, may_act=False, ready=False)
        at = LedgerStanding(faults, not_served=not_served, jobs=jobs)
        return LedgerPass(jobs.actions, render_status(seen, at), IDLE_REQUEUE_S)
    actions: list[Action | NamespaceAction] = [] if FINALIZER in resource.meta.finalizers else [SetFinalizer(True)]
    facts = BrokerFacts(seen.pool, default_image, seen.pod_monitors, _credentials(seen))
    actions += [Apply(child) for child in broker_children(resource, facts)]
    actions += [DeleteMonitor(*monitor) for monitor in seen.unwanted_monitors]
    wanting = [] if seen.namespace is None else missing(spec, seen.namespace, broker_hosts(resource))
    loads = [] if seen.namespace is None or wanting else to_load(spec, seen.namespace)
    against = () if seen.namespace is None else tuple(contradictions(spec, seen.namespace))
    idle = seen.namespace is not None and not wanting
    jobs = plan_jobs(seen, jobs_image, may_act=True, ready=idle)
    at = LedgerStanding(faults, against, not_served, len(wanting), jobs=jobs)
    stopped = spec.brokers.replicas == 0
    requeue_s = IDLE_REQUEUE_S if (idle and not loads) or stopped else BUSY_REQUEUE_S
    return LedgerPass(
        (*actions, *wanting, *loads, *jobs.actions), render_status(seen, at), min(requeue_s, jobs.requeue_s)
    )


def _credentials(seen: LedgerSeen) -> str | None:
    """Return the digest of the offload credentials. A temporarily missing Secret must not trigger a rolling restart."""
    offload = seen.resource.spec.offload
    if offload is None or offload.credentials_ref is None:
        return None
    before = None if seen.stateful_set is None else seen.stateful_set.credentials
    return seen.jobs.secrets.get(offload.credentials_ref.name) or before or NO_CREDENTIALS


def _rivalry(seen: LedgerSeen) -> str | None:
    """Return the error if an older ManagedLedger has this namespace: two would overwrite each other indefinitely."""
    if seen.rival is None:
        return None
    namespace = seen.resource.spec.namespace
    return f"namespace {namespace} already belongs to ManagedLedger {seen.rival}: delete one of them"


def _deletion(seen: LedgerSeen) -> tuple[tuple[Action | NamespaceAction, ...], str | None]:
    """Return the actions for a resource that is being deleted, and why it still exists.

    By default topics and data stay; with `Delete` the brokers delete the namespace while they still run.
    """
    if FINALIZER not in seen.resource.meta.finalizers:
        return (), None
    if seen.resource.spec.deletion_policy is DeletionPolicy.RETAIN:
        return (*_released(seen), SetFinalizer(False)), None
    if seen.rival is not None:
        return (SetFinalizer(False),), None
    if seen.pool is None:
        return (), (
            f"deletionPolicy is Delete, but without Bookie {seen.resource.spec.bookie_ref.name} the operator cannot "
            "check whether another ManagedLedger has the namespace: create the Bookie, or set deletionPolicy to "
            "Retain to keep the data"
        )
    if seen.namespace is None:
        return (), (
            "deletionPolicy is Delete, but no broker responds to delete the namespace: set brokers.replicas to 1, "
            "or deletionPolicy to Retain to keep the data"
        )
    if not seen.namespace.exists:
        return (*_released(seen), SetFinalizer(False)), None
    # Runs that read or offload its topics end before these are deleted; leftovers are collected with the resource.
    going, left = ending(seen)
    if left is not None:
        return going, left
    return (DeleteNamespace(seen.resource.spec.namespace),), "deleting the namespace with its topics"


def _released(seen: LedgerSeen) -> tuple[NamespaceAction, ...]:
    """Return the removal of the isolation policy if a broker responds: other brokers may then serve the namespace."""
    if seen.namespace is None or seen.namespace.isolation is None or seen.rival is not None:
        return ()
    return (ForgetIsolation(isolation_name(seen.resource.spec.namespace)),)
