"""`Tenant`: a tenant, which has namespaces. Models only."""

from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from quire_operator.api.declared import (
    DeclaredResource,
    DeclaredSpec,
    DeclaredStatus,
    set_once,
    status_field,
    stays_set,
)
from quire_operator.api.fields import Whole, names
from quire_operator.api.managed_ledger_spec import DeletionPolicy, PulsarName

Role = Annotated[str, StringConstraints(min_length=1, max_length=253)]


class TenantSpec(DeclaredSpec):
    """A tenant."""

    RULES = (stays_set("tenant"),)

    tenant: PulsarName | None = set_once("tenant", "Its name.")
    admin_roles: tuple[Role, ...] = names(
        256, "Roles that administer the tenant: exactly these. Empty: the roles are left alone."
    )
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="Retain keeps the tenant when the resource is deleted. Delete deletes it, if it has no namespaces.",
    )


class TenantStatus(DeclaredStatus):
    """The observed state."""

    tenant: str | None = Field(default=None, description="Name of the tenant.")
    namespaces: Whole | None = Field(default=None, description="Its namespaces. Absent while no broker responds.")
    admin_roles: Whole | None = Field(default=None, description="Roles that administer it.")


class Tenant(DeclaredResource):
    """A tenant of the brokers of a ManagedLedger."""

    KIND: ClassVar[str] = "Tenant"
    NAMED_BY: ClassVar[str] = "tenant"

    spec: TenantSpec = Field(description="Desired state.")
    status: TenantStatus = status_field(TenantStatus)
