"""Builds the account of drivers at the API server, with a Role for the pods that Spark creates. Pure.

Executors have the same account without its token. The operator must have all permissions that it grants (charts/quire).
"""

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import Manifest
from quire_operator.builders.naming import JOBS, child, child_name

RBAC = "rbac.authorization.k8s.io/v1"
VERBS = ("get", "list", "watch", "create", "patch", "delete", "deletecollection")


def job_access(resource: ManagedLedger, *, cluster_mode: bool) -> list[Manifest]:
    """Return ServiceAccount, Role and RoleBinding.

    `cluster_mode`: a Spark operator submits the drivers, which delete their own Service and ConfigMap.
    """
    name = child_name(resource.meta.name, JOBS)
    account = child("ServiceAccount", "v1", "ManagedLedger", resource.meta, JOBS)
    role = child("Role", RBAC, "ManagedLedger", resource.meta, JOBS)
    binding = child("RoleBinding", RBAC, "ManagedLedger", resource.meta, JOBS)
    resources = ["pods", "services", "configmaps"] if cluster_mode else ["pods"]
    return [
        account | {"automountServiceAccountToken": False},
        role | {"rules": [{"apiGroups": [""], "resources": resources, "verbs": list(VERBS)}]},
        binding
        | {
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": resource.meta.namespace}],
        },
    ]
