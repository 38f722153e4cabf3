"""Reconciles a resource: observe, plan, act, write the status. Correctness needs no state between reconciliations."""

from collections.abc import Iterable
from dataclasses import replace

from quire_operator.builders.effective import effective_bookie, effective_managed_ledger
from quire_operator.certificates.keeping import CertificateSecrets
from quire_operator.certificates.users import keep_bookie, keep_managed_ledger
from quire_operator.cluster.applying import PoolActions
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.ledger_applying import LedgerActions
from quire_operator.cluster.ledger_passwords import LedgerPasswords
from quire_operator.cluster.memory import Memory
from quire_operator.cluster.observing import observe_pool
from quire_operator.cluster.observing_ledger import observe_managed_ledger
from quire_operator.cluster.paths import bookie_path, managed_ledger_path
from quire_operator.cluster.statuses import write_status
from quire_operator.errors import ConflictError, KubeError, RefusedError
from quire_operator.plan.actions import Apply, SetFinalizer, SetReplicas, StartRun
from quire_operator.plan.bookie import lacks_replicas, plan_bookie
from quire_operator.plan.jobs import REFUSED_S
from quire_operator.plan.managed_ledger import plan_managed_ledger
from quire_operator.plan.rejections import rejection_events, rejection_of


async def reconcile_bookie(
    kube: Kube,
    http: BookieHttp,
    namespace: str,
    name: str,
    *,
    default_image: str,
    now_s: float,
    memory: Memory | None = None,
    certificates: CertificateSecrets | None = None,
    any_template: bool = False,
) -> float | None:
    """Reconcile a pool. Returns the seconds until the next reconciliation, or None if the resource is gone.

    `memory`: state of former reconciliations; without it every child is applied again. `certificates`: maintains
    generated certificates; None if the operator generates none. `any_template`: see `plan_bookie`. The status is
    written under the resourceVersion that was read. Raises ConflictError if that has changed: the actions were right
    for the observed state, and the next reconciliation observes the change. A rejected write is reported in the status
    and as an event, then raised. Raises OperatorError for other failures.
    """
    memory, path = memory or Memory(), bookie_path(namespace, name)
    observed = await observe_pool(kube, http, namespace, name, now_s, memory, generated=certificates is not None)
    if observed is None:
        memory.forget(path)
        return None
    fault = None if certificates is None else await keep_bookie(certificates, observed.resource, now_s)
    effective = effective_bookie(observed.resource, certificates is not None)
    observed = replace(observed, resource=effective, certificate_fault=fault)
    found = plan_bookie(observed, default_image, any_template=any_template)
    actions = PoolActions(kube, http, observed.resource, observed.hosts, now_s, memory.applied)
    try:
        await actions.perform(found.actions)
    except KubeError as error:
        rejected = rejection_of(error)
        if rejected is None:
            raise
        found = plan_bookie(replace(observed, rejected=rejected), default_image, any_template=any_template)
        await write_status(kube, path, observed.resource, found.status)
        await actions.perform(rejection_events(observed.resource.status.conditions, rejected))
        raise
    if any(isinstance(action, SetFinalizer | SetReplicas) for action in found.actions):
        return 0.0  # this changed the resourceVersion; the next reconciliation begins at once and writes the status
    changed = await write_status(kube, path, observed.resource, found.status)
    # Operations and under-replicated ledgers wait for events that no watch reports.
    waits = found.status.operation is not None or lacks_replicas(observed)
    quiet = not changed and not waits and _only_applies(found.actions)
    return memory.paces.next_s(path, found.requeue_s, quiet=quiet)


async def reconcile_managed_ledger(
    kube: Kube,
    brokers: BrokerRest,
    namespace: str,
    name: str,
    *,
    default_image: str,
    now_s: float,
    jobs_image: str | None = None,
    memory: Memory | None = None,
    certificates: CertificateSecrets | None = None,
    passwords: LedgerPasswords | None = None,
    any_template: bool = False,
) -> float | None:
    """Reconcile a ManagedLedger, like `reconcile_bookie`. Refusals are written to the status, then raised.

    `jobs_image`: for jobs whose resource names none. `passwords`: maintains generated ledger passwords; None if the
    operator generates none.
    """
    memory, path = memory or Memory(), managed_ledger_path(namespace, name)
    observation = await observe_managed_ledger(
        kube, brokers, namespace, name, now_s, memory, generated=certificates is not None
    )
    if observation is None:
        memory.forget(path)
        return None
    observed, endpoint = observation
    fault = None if certificates is None else await keep_managed_ledger(certificates, observed.resource, now_s)
    lacking = None if passwords is None else await passwords.ensure(observed.resource, now_s)
    observed = replace(
        observed,
        resource=effective_managed_ledger(observed.resource, certificates is not None, passwords=passwords is not None),
        password_fault=lacking,
        pool=None if observed.pool is None else effective_bookie(observed.pool, certificates is not None),
        certificate_fault=fault,
    )
    refused_runs = memory.refusals.get(path, {})
    observed = replace(observed, jobs=replace(observed.jobs, refused=refused_runs))
    found = plan_managed_ledger(observed, default_image, jobs_image, any_template=any_template)
    refusal: KubeError | RefusedError | None = None
    actions = LedgerActions(kube, brokers, observed.resource, endpoint, now_s, memory.applied)
    try:
        await actions.perform(found.actions)
    except ConflictError:
        raise
    except (KubeError, RefusedError) as error:
        refusal = error
    finally:
        started = {action.job for action in found.actions if isinstance(action, StartRun)}
        known = {job: one for job, one in refused_runs.items() if now_s - one.at_s < 2 * REFUSED_S}
        stay = {job: one for job, one in known.items() if job not in started}
        memory.refusals[path] = stay | actions.refused
    if refusal is not None or actions.refused:
        jobs = replace(observed.jobs, refused=memory.refusals[path])
        rejected = None if refusal is None else rejection_of(refusal)
        observed = replace(observed, jobs=jobs, rejected=rejected)
        found = plan_managed_ledger(observed, default_image, jobs_image, any_template=any_template)
    if refusal is None and any(isinstance(action, SetFinalizer) for action in found.actions):
        return 0.0
    changed = await write_status(kube, path, observed.resource, found.status)
    if refusal is not None:
        await actions.perform(rejection_events(observed.resource.status.conditions, observed.rejected))
        raise refusal
    quiet = not changed and _only_applies(found.actions)
    return memory.paces.next_s(path, found.requeue_s, quiet=quiet)


def _only_applies(actions: Iterable[object]) -> bool:
    """Return whether the plan only applies children, as every plan does."""
    return all(isinstance(action, Apply) for action in actions)
