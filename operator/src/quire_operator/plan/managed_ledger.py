"""One pass over a ManagedLedger: children, then topics, cursors and policies through the brokers. Pure."""

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
    """What one look leads to. Actions are taken first, in order; then the status is written with a precondition."""

    actions: tuple[Action | NamespaceAction, ...]
    status: ManagedLedgerStatus
    requeue_s: float


def plan_managed_ledger(
    seen: LedgerSeen, default_image: str, jobs_image: str | None = None, *, any_template: bool = False
) -> LedgerPass:
    """The pass. The images are those of resources that name none. `any_template` as in `plan_bookie`."""
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
    """A digest of what the Secret of the offload's credentials has. One that is away for a moment rolls no broker."""
    offload = seen.resource.spec.offload
    if offload is None or offload.credentials_ref is None:
        return None
    before = None if seen.stateful_set is None else seen.stateful_set.credentials
    return seen.jobs.secrets.get(offload.credentials_ref.name) or before or NO_CREDENTIALS


def _rivalry(seen: LedgerSeen) -> str | None:
    """Two operators of one namespace would take it from each other for ever: the older resource has it."""
    if seen.rival is None:
        return None
    return f"namespace {seen.resource.spec.namespace} is that of ManagedLedger {seen.rival} already: delete one of them"


def _deletion(seen: LedgerSeen) -> tuple[tuple[Action | NamespaceAction, ...], str | None]:
    """What to do about a resource that is deleted, and why it is still there.

    By default topics and data stay; with `Delete` the brokers delete the namespace while they are still there.
    """
    if FINALIZER not in seen.resource.meta.finalizers:
        return (), None
    if seen.resource.spec.deletion_policy is DeletionPolicy.RETAIN:
        return (*_released(seen), SetFinalizer(False)), None
    if seen.rival is not None:
        return (SetFinalizer(False),), None
    if seen.pool is None:
        return (), (
            f"deletionPolicy is Delete and there is no Bookie {seen.resource.spec.bookie_ref.name} that would tell "
            "whether another ManagedLedger has the namespace: make it, or set deletionPolicy to Retain to keep the data"
        )
    if seen.namespace is None:
        return (), (
            "deletionPolicy is Delete and no broker answers that could delete it: set brokers.replicas to 1, "
            "or deletionPolicy to Retain to keep the data"
        )
    if not seen.namespace.exists:
        return (*_released(seen), SetFinalizer(False)), None
    # What reads and offloads its topics ends before they go; what stays behind goes with the resource.
    going, left = ending(seen)
    if left is not None:
        return going, left
    return (DeleteNamespace(seen.resource.spec.namespace),), "deleting the namespace with its topics"


def _released(seen: LedgerSeen) -> tuple[NamespaceAction, ...]:
    """What keeps other brokers from the namespace, taken away as long as there is somebody to ask."""
    if seen.namespace is None or seen.namespace.isolation is None or seen.rival is not None:
        return ()
    return (ForgetIsolation(isolation_name(seen.resource.spec.namespace)),)
