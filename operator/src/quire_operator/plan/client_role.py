"""Plans a reconciliation of a `ClientRole`: its permissions, and its token. Pure.

Where a permission is declared the role has exactly the declared actions; elsewhere grants are left alone. Lists of
roles that another resource declares completely (`access` of a ManagedLedger, `adminRoles` of a Tenant) win.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quire_operator.api.client_role import ClientRole, ClientRoleStatus
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.managed_ledger_spec import AccessAction
from quire_operator.builders.broker import broker_hosts, service_url
from quire_operator.builders.settings import BOOKIE_ROLE, BROKER_ROLE, OPERATOR_ROLE, PROXY_ROLE
from quire_operator.plan.actions import Grant, GrantTopic, IssueToken, NamespaceAction, SetAdmins, SetTenant
from quire_operator.plan.declared import Case, Decision, Difference, Removal, Surroundings, decide, rendered
from quire_operator.plan.ledger_observation import NamespaceState, TenantState
from quire_operator.plan.namespace import ACTIONS, isolation
from quire_operator.plan.operations import rfc3339
from quire_operator.plan.role_token import ObservedToken, renewed_token, token_fault, wanted_token

RESERVED_ROLES = (OPERATOR_ROLE, BOOKIE_ROLE, BROKER_ROLE, PROXY_ROLE)


@dataclass(frozen=True, slots=True)
class ClientRoleObservation:
    """A ClientRole, observed once."""

    resource: ClientRole
    around: Surroundings
    namespaces: Mapping[str, NamespaceState] | None = None
    """The namespaces that its permissions, declared or granted, are about; None if no broker responded."""
    tenants: Mapping[str, TenantState] | None = None
    token: ObservedToken = field(default_factory=ObservedToken)
    exact_admins: Mapping[str, tuple[str, ...]] | None = None
    """Admin roles by tenant, where a Tenant resource declares them."""


def tenants_of(resource: ClientRole) -> set[str]:
    """Return the tenants that declared and granted permissions are about."""
    return {name for kind, name in map(_split, _scopes(resource)) if kind == "tenant"}


def namespaces_of(resource: ClientRole) -> set[str]:
    """Return the namespaces that declared and granted permissions are about, also those of topics."""
    return {_namespace(kind, name) for kind, name in map(_split, _scopes(resource)) if kind != "tenant"}


def _scopes(resource: ClientRole) -> dict[str, tuple[AccessAction, ...]]:
    """Return the wanted actions by scope; none where they were granted and are not declared any more."""
    former: dict[str, tuple[AccessAction, ...]] = dict.fromkeys(resource.status.granted, ())
    return former | {one.scope: one.actions for one in resource.spec.permissions}


def _split(scope: str) -> tuple[str, str]:
    kind, _, name = scope.partition(" ")
    return kind, name


def _namespace(kind: str, name: str) -> str:
    """Return the namespace of a scope, which is a namespace or a topic."""
    return name.rpartition("/")[0] if kind == "topic" else name


def plan_client_role(observed: ClientRoleObservation) -> tuple[Decision, ClientRoleStatus]:
    """Return the decision and the status after it."""
    resource, around = observed.resource, observed.around
    known = around.ledger is not None and observed.namespaces is not None and observed.tenants is not None
    differences = _differences(observed, _scopes(resource)) if known else []
    idle: tuple[IssueToken, ...] = ()
    if known and around.ledger is not None and resource.meta.deletion_timestamp is None:
        url = service_url(around.ledger)
        wanted = wanted_token(resource, observed.token, url, around.now_s)
        renewed = renewed_token(resource, observed.token, url, around.now_s)
        if wanted is not None:
            what = f"Secret {resource.secret_name} has no valid token of the role"
            differences.append(Difference(what, (wanted,), adds=True))
        elif renewed is not None:
            idle = (renewed,)
    nothing = dict.fromkeys(_scopes(resource), ())
    revoked = [action for one in _differences(observed, nothing) for action in one.actions] if known else []
    case = Case(
        subject=f"role {resource.name}",
        resource=resource,
        around=around,
        exists=bool(revoked) if known else None,
        differences=tuple(differences),
        fault=None if around.ledger is None else _fault(observed, around.ledger),
        waits=_waits(observed) if known else None,
        removal=Removal(tuple(revoked)),
        idle=idle,
    )
    decision = decide(case)
    synced = known and not differences
    status = ClientRoleStatus.model_validate(
        {
            "role": resource.name,
            "permissions": len(resource.spec.permissions) - _lacking(differences, resource) if known else None,
            "granted": _granted(resource, decision, synced=synced),
            "token_secret": resource.secret_name if observed.token.ours else None,
            "token_expires_at": None if observed.token.expires_s is None else rfc3339(observed.token.expires_s),
            **rendered(case, decision),
        }
    )
    return decision, status


def _lacking(differences: list[Difference], resource: ClientRole) -> int:
    declared = {one.scope for one in resource.spec.permissions}
    return len({one.what.partition(":")[0] for one in differences} & declared)


def _granted(resource: ClientRole, decision: Decision, *, synced: bool) -> tuple[str, ...]:
    """Return where permissions are to be revoked once they are not declared; written before any is granted."""
    if not decision.managed:
        return ()
    scopes = {one.scope for one in resource.spec.permissions}
    if not synced:
        scopes |= set(resource.status.granted)
    return tuple(sorted(scopes))


def _fault(observed: ClientRoleObservation, ledger: ManagedLedger) -> tuple[str, str] | None:
    """Return reason and message of an error that a user must fix."""
    resource, authentication = observed.resource, ledger.spec.brokers.authentication
    role, name = resource.name, ledger.meta.name
    if authentication is None:
        message = f"brokers of ManagedLedger {name} accept every client: set brokers.authentication there"
        return "NoAuthentication", message
    if role in (*RESERVED_ROLES, *authentication.super_user_roles):
        return "ReservedRole", f"role {role} has full access already, and no token of it is issued: choose another name"
    scopes = [one.scope for one in resource.spec.permissions]
    twice = sorted({scope for scope in scopes if scopes.count(scope) > 1})
    if twice:
        return "InvalidSpec", f"permissions: {', '.join(twice)} is there twice: put all actions into one entry"
    for kind, place in map(_split, scopes):
        if kind == "namespace" and ledger.spec.access and place == ledger.spec.namespace:
            message = f"ManagedLedger {name} declares spec.access, which revokes other roles: add the role there"
            return "AccessDeclared", message
        exact = (observed.exact_admins or {}).get(place) if kind == "tenant" else None
        if exact is not None and role not in exact:
            return (
                "AccessDeclared",
                f"Tenant {place} declares adminRoles, which revokes other roles: add the role there",
            )
        namespace = _namespace(kind, place)
        state = (observed.namespaces or {}).get(namespace) if kind != "tenant" else None
        if state is not None and state.exists and not _served(namespace, state, ledger):
            return (
                "NotServed",
                f"namespace {namespace} is not served by ManagedLedger {name}: refer to the one that does",
            )
    return token_fault(resource, observed.token)


def _served(namespace: str, state: NamespaceState, ledger: ManagedLedger) -> bool:
    """Return whether the brokers of the ManagedLedger serve the namespace: others have other tokens."""
    return state.isolation == isolation(namespace, broker_hosts(ledger))


def _waits(observed: ClientRoleObservation) -> tuple[str, str] | None:
    """Return what must exist before it can be granted."""
    for kind, name in map(_split, (one.scope for one in observed.resource.spec.permissions)):
        if kind == "tenant" and not (observed.tenants or {})[name].exists:
            return "NoTenant", f"tenant {name} does not exist: declare it as a Tenant"
        namespace = _namespace(kind, name)
        if kind != "tenant" and not (observed.namespaces or {})[namespace].exists:
            return "NoNamespace", f"namespace {namespace} does not exist: declare it, e.g. as a TopicNamespace"
    return None


def _differences(observed: ClientRoleObservation, wanted: Mapping[str, tuple[AccessAction, ...]]) -> list[Difference]:
    """Return the differences of all scopes. Their texts begin with the scope."""
    role, found = observed.resource.name, list[Difference]()
    tenants, namespaces = observed.tenants or {}, observed.namespaces or {}
    for scope, actions in sorted(wanted.items()):
        kind, name = _split(scope)
        admin = AccessAction.ADMIN in actions
        plain = tuple(sorted(ACTIONS[one] for one in actions if one in ACTIONS))
        if kind == "tenant":
            tenant = tenants[name]
            roles = _with(tenant.admin_roles, role, present=admin)
            if tenant.exists and roles != tenant.admin_roles:
                found.append(_of_admin(scope, SetTenant(name, roles, tenant.clusters), admin))
            continue
        state = namespaces[_namespace(kind, name)]
        if not state.exists:
            continue
        if kind == "topic":
            namespace, _, topic = name.rpartition("/")
            there = state.topic_grants.get(f"persistent://{name}", {}).get(role, ())
            action: NamespaceAction = GrantTopic(namespace, topic, role, plain)
        else:
            there, action = state.grants.get(role, ()), Grant(name, role, plain)
            roles = _with(state.admins, role, present=admin)
            if roles != state.admins:
                found.append(_of_admin(scope, SetAdmins(name, roles), admin))
        if set(there) != set(plain):
            what = f"{scope}: granted are {_texts(there)}, declared are {_texts(plain)}"
            found.append(Difference(what, (action,), adds=set(there) <= set(plain)))
    return found


def _of_admin(scope: str, action: NamespaceAction, wanted: bool) -> Difference:
    what = f"{scope}: the role is {'not ' if wanted else ''}an admin"
    return Difference(what, (action,), adds=wanted)


def _with(roles: tuple[str, ...], role: str, *, present: bool) -> tuple[str, ...]:
    """Return the roles with or without one; unchanged if that is so already."""
    if (role in roles) is present:
        return roles
    return (*roles, role) if present else tuple(one for one in roles if one != role)


def _texts(actions: tuple[str, ...]) -> str:
    return ", ".join(sorted(actions)) or "none"
