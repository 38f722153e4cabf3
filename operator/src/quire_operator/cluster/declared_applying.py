"""Performs the planned actions on an object that a resource declares. Decides nothing; each action is idempotent."""

from collections.abc import Iterable

from quire_operator.api import API_VERSION
from quire_operator.api.declared import DeclaredResource
from quire_operator.cluster.broker_rest import BrokerEndpoint, BrokerRest
from quire_operator.cluster.events import emit
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import object_path
from quire_operator.cluster.role_tokens import RoleTokens
from quire_operator.errors import UnreachableError
from quire_operator.plan import actions as act
from quire_operator.plan.declared import FINALIZER


def declared_path(kind: str, namespace: str, name: str) -> str:
    """Return the path of a resource that declares an object of the brokers."""
    return object_path(API_VERSION, kind, namespace, name)


class DeclaredActions:
    """Performs actions for one resource. `endpoint`: the broker that responded, if any. `tokens`: of a role."""

    def __init__(
        self,
        kube: Kube,
        rest: BrokerRest,
        resource: DeclaredResource,
        endpoint: BrokerEndpoint | None,
        now_s: float,
        tokens: RoleTokens | None = None,
    ) -> None:
        self._kube, self._rest, self._endpoint, self._tokens = kube, rest, endpoint, tokens
        self._kind, self._meta = resource.KIND, resource.meta
        self._now_s = now_s

    async def perform(self, actions: Iterable[act.Action | act.NamespaceAction]) -> None:
        """Perform the actions in order. Raises OperatorError at the first failure; the next reconciliation retries."""
        for action in actions:
            if isinstance(action, act.SetFinalizer):
                path = declared_path(self._kind, self._meta.namespace, self._meta.name)
                await self._kube.set_finalizer(path, self._meta, FINALIZER, action.present)
            elif isinstance(action, act.Emit):
                await emit(self._kube, self._kind, self._meta, action, self._now_s)
            elif isinstance(action, act.IssueToken) and self._tokens is not None:
                await self._tokens.issue(action)
            elif isinstance(action, act.NamespaceAction):
                if self._endpoint is None:
                    raise UnreachableError("no broker responds")
                self._kube.before_writing()  # the brokers do not know who holds the lease
                await self._rest.perform(self._endpoint, action)
            else:
                raise AssertionError(f"not an action of a {self._kind}: {action}")
