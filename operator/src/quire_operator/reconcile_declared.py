"""Reconciles resources that declare objects of the brokers: observe, plan, act, write the status.

Like `reconcile`: correctness needs no state between reconciliations.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from quire_operator.api.client_role import ClientRole
from quire_operator.api.declared import DeclaredResource, DeclaredStatus
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.tenant import Tenant
from quire_operator.api.topic import TopicResource
from quire_operator.api.topic_namespace import TopicNamespace
from quire_operator.builders.effective import effective_managed_ledger
from quire_operator.cluster.broker_rest import BrokerEndpoint, BrokerRest
from quire_operator.cluster.declared_applying import DeclaredActions, declared_path
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.ledger_reads import LedgerBrokers, Places
from quire_operator.cluster.memory import Memory
from quire_operator.cluster.observing_declared import (
    declared_admins,
    declaring_ledger,
    ledger_of,
    owner_elsewhere,
)
from quire_operator.cluster.role_tokens import RoleTokens
from quire_operator.cluster.statuses import write_status
from quire_operator.errors import ConflictError, KubeError, RefusedError, UnreachableError
from quire_operator.plan.actions import NamespaceAction, SetFinalizer
from quire_operator.plan.client_role import ClientRoleObservation, namespaces_of, plan_client_role, tenants_of
from quire_operator.plan.declared import Decision, Surroundings
from quire_operator.plan.ledger_observation import NamespaceState, ObservedSchema, TenantState
from quire_operator.plan.rejections import rejection_of
from quire_operator.plan.role_token import ObservedToken
from quire_operator.plan.tenant import TenantObservation, plan_tenant
from quire_operator.plan.topic import TopicObservation, declared_by_ledger, namespace_of, plan_topic
from quire_operator.plan.topic_namespace import TopicNamespaceObservation, plan_topic_namespace

ResourceT = TypeVar("ResourceT", bound=DeclaredResource)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DeclaredContext:
    """What all reconciliations of these resources share."""

    kube: Kube
    rest: BrokerRest
    memory: Memory
    generated: bool = False
    """The operator generates certificates."""

    def brokers(self, ledger: ManagedLedger, now_s: float) -> LedgerBrokers:
        """Return the brokers of a ManagedLedger."""
        return LedgerBrokers(self.kube, self.rest, ledger, self.memory.reads, now_s)

    async def ledger_of(self, resource: DeclaredResource) -> ManagedLedger | None:
        """Return the ManagedLedger of a resource, with the TLS settings in effect; None if there is none."""
        found = await ledger_of(self.kube, resource)
        return None if found is None else effective_managed_ledger(found, self.generated)


@dataclass(frozen=True, slots=True)
class Planned:
    """An observation of an object, and its plan."""

    around: Surroundings
    plan: Callable[[Surroundings], tuple[Decision, DeclaredStatus]]
    """Plans again, e.g. with a rejected write."""
    endpoint: BrokerEndpoint | None = None
    """The broker that responded."""
    tokens: RoleTokens | None = None


Observe = Callable[[DeclaredContext, ResourceT, ManagedLedger | None, float], Awaitable[Planned]]


async def reconcile_tenant(context: DeclaredContext, namespace: str, name: str, now_s: float) -> float | None:
    """Reconcile a Tenant. Returns the seconds until the next reconciliation, or None if the resource is gone.

    A rejected write is reported in the status, then raised. Raises OperatorError for other failures.
    """
    return await _reconcile(context, Tenant, _observe_tenant, namespace, name, now_s)


async def reconcile_topic_namespace(context: DeclaredContext, namespace: str, name: str, now_s: float) -> float | None:
    """Reconcile a TopicNamespace, like `reconcile_tenant`."""
    return await _reconcile(context, TopicNamespace, _observe_topic_namespace, namespace, name, now_s)


async def reconcile_topic(context: DeclaredContext, namespace: str, name: str, now_s: float) -> float | None:
    """Reconcile a Topic, like `reconcile_tenant`."""
    return await _reconcile(context, TopicResource, _observe_topic, namespace, name, now_s)


async def reconcile_client_role(context: DeclaredContext, namespace: str, name: str, now_s: float) -> float | None:
    """Reconcile a ClientRole, like `reconcile_tenant`."""
    return await _reconcile(context, ClientRole, _observe_client_role, namespace, name, now_s)


RECONCILES: Mapping[str, Callable[[DeclaredContext, str, str, float], Awaitable[float | None]]] = {
    "Tenant": reconcile_tenant,
    "TopicNamespace": reconcile_topic_namespace,
    "Topic": reconcile_topic,
    "ClientRole": reconcile_client_role,
}
"""By kind."""


async def _observe_tenant(
    context: DeclaredContext, resource: Tenant, ledger: ManagedLedger | None, now_s: float
) -> Planned:
    def plan(at: Surroundings, state: TenantState | None = None) -> tuple[Decision, DeclaredStatus]:
        return plan_tenant(TenantObservation(resource, at, state))

    if ledger is None:
        return Planned(Surroundings(now_s, None), plan)
    rival = await owner_elsewhere(context.kube, context.memory, resource, ledger, Tenant.name_in)
    return await _asked(Surroundings(now_s, ledger, rival), context.brokers(ledger, now_s).tenant(resource.name), plan)


async def _observe_topic_namespace(
    context: DeclaredContext, resource: TopicNamespace, ledger: ManagedLedger | None, now_s: float
) -> Planned:
    def plan(at: Surroundings, state: NamespaceState | None = None) -> tuple[Decision, DeclaredStatus]:
        return plan_topic_namespace(TopicNamespaceObservation(resource, at, state))

    if ledger is None:
        return Planned(Surroundings(now_s, None), plan)
    rival = await declaring_ledger(context.kube, context.memory, ledger, resource.name) or await owner_elsewhere(
        context.kube, context.memory, resource, ledger, TopicNamespace.name_in
    )
    brokers = context.brokers(ledger, now_s)
    return await _asked(Surroundings(now_s, ledger, rival), brokers.namespace(resource.name), plan)


async def _observe_topic(
    context: DeclaredContext, resource: TopicResource, ledger: ManagedLedger | None, now_s: float
) -> Planned:
    def plan(
        at: Surroundings, found: tuple[NamespaceState, ObservedSchema | None] | None = None
    ) -> tuple[Decision, DeclaredStatus]:
        state, schema = found or (None, None)
        return plan_topic(TopicObservation(resource, at, state, schema))

    if ledger is None:
        return Planned(Surroundings(now_s, None), plan)

    def target(item: Mapping[str, Any]) -> str:
        return f"{item['spec'].get('namespace') or ledger.spec.namespace}/{TopicResource.name_in(item)}"

    rival = declared_by_ledger(resource, ledger) or await owner_elsewhere(
        context.kube, context.memory, resource, ledger, target, of_ledger=True
    )
    asking = _topic_state(context, resource, ledger, now_s)
    return await _asked(Surroundings(now_s, ledger, rival), asking, plan)


async def _topic_state(
    context: DeclaredContext, resource: TopicResource, ledger: ManagedLedger, now_s: float
) -> tuple[tuple[NamespaceState, ObservedSchema | None], BrokerEndpoint] | None:
    """Return the namespace of a topic and its declared schema; None if no broker responds. KubeError, RefusedError."""
    namespace = namespace_of(resource, ledger)
    answer = await context.brokers(ledger, now_s).namespace(namespace)
    if answer is None:
        return None
    (state, endpoint), schema = answer, resource.spec.topic_schema
    if schema is None or not state.exists or resource.meta.deletion_timestamp is not None:
        return (state, None), endpoint
    try:
        return (state, await context.rest.schema(endpoint, namespace, resource.name, schema)), endpoint
    except UnreachableError:
        return None


async def _observe_client_role(
    context: DeclaredContext, resource: ClientRole, ledger: ManagedLedger | None, now_s: float
) -> Planned:
    def plan(
        at: Surroundings,
        places: Places | None = None,
        token: ObservedToken | None = None,
        exact: Mapping[str, tuple[str, ...]] | None = None,
    ) -> tuple[Decision, DeclaredStatus]:
        namespaces, tenants = places or (None, None)
        return plan_client_role(
            ClientRoleObservation(resource, at, namespaces, tenants, token or ObservedToken(), exact)
        )

    if ledger is None:
        return Planned(Surroundings(now_s, None), plan)
    kube, memory = context.kube, context.memory
    rival = await owner_elsewhere(kube, memory, resource, ledger, ClientRole.name_in, of_ledger=True)
    tokens = RoleTokens(kube, resource, ledger)
    knowing = partial(plan, token=await tokens.observe(), exact=await declared_admins(kube, memory, ledger))
    # Without any permission a broker is asked all the same: it is unknown otherwise whether one is reachable.
    asking = context.brokers(ledger, now_s).places(namespaces_of(resource), tenants_of(resource))
    return replace(await _asked(Surroundings(now_s, ledger, rival), asking, knowing), tokens=tokens)


async def _asked(
    around: Surroundings,
    asking: Awaitable[tuple[T, BrokerEndpoint] | None],
    plan: Callable[[Surroundings, T | None], tuple[Decision, DeclaredStatus]],
) -> Planned:
    """Return the plan with the answer of a broker, if one responds; a refusal becomes part of the surroundings."""
    answer = None
    try:
        answer = await asking
    except RefusedError as error:
        around = replace(around, rejected=rejection_of(error))
    state, endpoint = answer or (None, None)
    return Planned(around, lambda at: plan(at, state), endpoint)


async def _reconcile(
    context: DeclaredContext,
    kind: type[ResourceT],
    observe: Observe[ResourceT],
    namespace: str,
    name: str,
    now_s: float,
) -> float | None:
    """Reconcile one resource of any kind."""
    kube, path = context.kube, declared_path(kind.KIND, namespace, name)
    found = await kube.get(path)
    if found is None:
        context.memory.forget(path)
        return None
    resource = kind.model_validate(found)
    ledger = await context.ledger_of(resource)
    planned = await observe(context, resource, ledger, now_s)
    decision, status = planned.plan(planned.around)
    actions = DeclaredActions(kube, context.rest, resource, planned.endpoint, now_s, planned.tokens)
    try:
        await actions.perform(decision.actions)
    except ConflictError:
        raise
    except (KubeError, RefusedError, UnreachableError) as error:
        rejected = rejection_of(error)
        if rejected is not None:
            _, status = planned.plan(replace(planned.around, rejected=rejected))
        await write_status(kube, path, resource, status)
        raise
    finally:
        if ledger is not None and any(isinstance(one, NamespaceAction) for one in decision.actions):
            context.memory.reads.forget(ledger.meta.uid)
    if any(isinstance(action, SetFinalizer) for action in decision.actions):
        return 0.0  # this changed the resourceVersion; the next reconciliation writes the status
    changed = await write_status(kube, path, resource, status)
    if decision.requeue_s == 0:
        return 0.0
    return context.memory.paces.next_s(path, decision.requeue_s, quiet=not changed and not decision.actions)
