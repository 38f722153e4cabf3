"""Plans a reconciliation of a `Tenant`. Pure."""

from dataclasses import dataclass

from quire_operator.api.tenant import Tenant, TenantStatus
from quire_operator.plan.actions import DeleteTenant, SetTenant
from quire_operator.plan.declared import Case, Decision, Difference, Removal, Surroundings, decide, rendered
from quire_operator.plan.ledger_observation import TenantState


@dataclass(frozen=True, slots=True)
class TenantObservation:
    """A Tenant, observed once."""

    resource: Tenant
    around: Surroundings
    state: TenantState | None
    """None if no broker responded."""


def plan_tenant(observed: TenantObservation) -> tuple[Decision, TenantStatus]:
    """Return the decision and the status after it."""
    resource, state = observed.resource, observed.state
    case = Case(
        subject=f"tenant {resource.name}",
        resource=resource,
        around=observed.around,
        exists=None if state is None else state.exists,
        differences=() if state is None else tuple(_differences(resource, state)),
        removal=_removal(resource, state),
    )
    decision = decide(case)
    known = state is not None and state.exists
    status = TenantStatus.model_validate(
        {
            "tenant": resource.name,
            "namespaces": state.namespaces if state is not None and known else None,
            "admin_roles": len(state.admin_roles) if state is not None and known else None,
            **rendered(case, decision),
        }
    )
    return decision, status


def _differences(resource: Tenant, state: TenantState) -> list[Difference]:
    wanted, name = resource.spec.admin_roles, resource.name
    if not state.exists:
        return [Difference(f"tenant {name} does not exist", (SetTenant(name, wanted),), adds=True)]
    if not wanted or set(wanted) == set(state.admin_roles):
        return []
    adds = set(state.admin_roles) <= set(wanted)
    what = f"adminRoles are {_roles(state.admin_roles)}, declared are {_roles(wanted)}"
    return [Difference(what, (SetTenant(name, wanted, state.clusters),), adds=adds)]


def _roles(roles: tuple[str, ...]) -> str:
    return ", ".join(sorted(roles)) or "none"


def _removal(resource: Tenant, state: TenantState | None) -> Removal:
    count = 0 if state is None else state.namespaces
    held = f"tenant {resource.name} still has namespaces ({count}): delete them, or set deletionPolicy to Retain"
    return Removal((DeleteTenant(resource.name),), held if count else None)
