"""`ClientRole`: a role of clients, with permissions and a token in a Secret. Models only."""

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
from quire_operator.api.fields import ApiModel, Duration, Label, Name, Rule, Timestamp, Whole, names, section
from quire_operator.api.managed_ledger_spec import PULSAR_WORD, AccessAction, DeletionPolicy, Namespace, PulsarName
from quire_operator.api.tenant import Role

PERMISSIONS_MAX = 64
Scope = Annotated[str, StringConstraints(max_length=410)]
"""The kind and the name of what a permission is about, e.g. `namespace shop/orders`."""
TopicPath = Annotated[str, StringConstraints(pattern=rf"^{PULSAR_WORD}/{PULSAR_WORD}/{PULSAR_WORD}$", max_length=400)]


class Permission(ApiModel):
    """What the role may do with a tenant, a namespace or a topic."""

    RULES = (
        Rule(
            "[has(self.tenant), has(self.namespace), has(self.topic)].filter(one, one).size() == 1",
            "permissions: give exactly one of tenant, namespace and topic",
        ),
        Rule(
            "!has(self.tenant) || self.actions.all(one, one == 'Admin')",
            "permissions: a tenant has only the action Admin",
            ".actions",
        ),
        Rule(
            "!has(self.topic) || !self.actions.exists(one, one == 'Admin')",
            "permissions: a topic has only the actions Produce and Consume",
            ".actions",
        ),
    )

    tenant: PulsarName | None = Field(None, description="A tenant, which the role administers.")
    namespace: Namespace | None = Field(None, description="tenant/namespace.")
    topic: TopicPath | None = Field(None, description="tenant/namespace/topic, with all of its partitions.")
    actions: tuple[AccessAction, ...] = Field(
        min_length=1, max_length=3, description="Its permissions.", json_schema_extra={"x-kubernetes-list-type": "set"}
    )

    @property
    def scope(self) -> str:
        """The kind and the name of what it is about, e.g. `namespace shop/orders`."""
        if self.tenant is not None:
            return f"tenant {self.tenant}"
        return f"namespace {self.namespace}" if self.namespace is not None else f"topic {self.topic}"


class RoleToken(ApiModel):
    """The token of the role, which the operator signs, stores in a Secret, and renews."""

    RULES = (
        Rule("duration(self.validFor) >= duration('10m')", "token: validFor must be 10m or more", ".validFor"),
        Rule(
            "!has(self.renewBefore) || duration(self.renewBefore) < duration(self.validFor)",
            "token: renewBefore must be below validFor",
            ".renewBefore",
        ),
    )

    secret_name: Name | None = Field(
        None,
        description="Secret that the operator writes, with the keys token, role and serviceUrl. Default: <name>-token. "
        "A Secret that exists and does not belong to this resource is not changed.",
    )
    valid_for: Duration = Field("720h", description="How long a token is valid.")
    renew_before: Duration | None = Field(
        None, description="Time before its end at which a token is replaced. Default: a third of validFor."
    )
    signing_key_secret: Name | None = Field(
        None,
        description="Secret with private.key, the private key of the pair, if authentication.keyType of the "
        "ManagedLedger is Public. Default: token.key of authentication.tokenKeySecret.",
    )


class ClientRoleSpec(DeclaredSpec):
    """A role of clients."""

    RULES = (stays_set("role"),)

    role: Role | None = set_once("role", "Name of the role, the subject of its token.")
    permissions: tuple[Permission, ...] = Field(
        (), max_length=PERMISSIONS_MAX, description="What the role may do: exactly this where it is named here."
    )
    token: RoleToken = section(RoleToken, "The token of the role.")
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.DELETE,
        description="Delete revokes the permissions when the resource is deleted. Retain keeps them. The Secret goes "
        "with the resource; a token that was copied stays valid until it expires.",
    )


class ClientRoleStatus(DeclaredStatus):
    """The observed state."""

    role: Label | None = Field(default=None, description="Name of the role.")
    permissions: Whole | None = Field(
        default=None, description="Declared permissions that are granted. Absent while no broker responds."
    )
    granted: tuple[Scope, ...] = names(
        2 * PERMISSIONS_MAX,
        "Tenants, namespaces and topics where the operator grants permissions, and revokes them once not declared.",
    )
    token_secret: Label | None = Field(default=None, description="Secret with the token.")
    token_expires_at: Timestamp | None = Field(default=None, description="When the token in the Secret expires.")


class ClientRole(DeclaredResource):
    """A role of clients of the brokers of a ManagedLedger."""

    RULES = (
        Rule(
            "size(self.metadata.name) <= 240 || has(self.spec.token.secretName)",
            "metadata.name is longer than 240 characters: the Secret is named after it; set token.secretName",
        ),
    )
    KIND: ClassVar[str] = "ClientRole"
    NAMED_BY: ClassVar[str] = "role"

    spec: ClientRoleSpec = Field(description="Desired state.")
    status: ClientRoleStatus = status_field(ClientRoleStatus)

    @property
    def secret_name(self) -> str:
        """The name of the Secret with the token."""
        return self.spec.token.secret_name or f"{self.meta.name}-token"
