"""Parts of the resources that declare objects of the brokers: tenants, namespaces, topics, roles. Models only."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import Field

from quire_operator.api.conditions import Condition, conditions_field
from quire_operator.api.fields import AnyObject, ApiModel, Label, Message, Name, Rule, Timestamp, part, validated_by
from quire_operator.api.managed_ledger_spec import DeletionPolicy
from quire_operator.api.shared import Metadata

DECLARED_KINDS = ("Tenant", "TopicNamespace", "Topic", "ClientRole")
"""Kinds that refer to a ManagedLedger whose brokers have the object that they declare."""
NAMESPACE_STAYS = Rule("self == oldSelf", "namespace cannot be changed: topics do not move")


class AdoptionPolicy(StrEnum):
    """What happens if the object exists already with other content."""

    IF_EQUAL = "IfEqual"
    ALWAYS = "Always"


class LedgerRef(ApiModel):
    """A ManagedLedger of the same Kubernetes namespace."""

    name: Name = Field(description="Its name.")


class Reverted(ApiModel):
    """The latest change by others that the operator found and changes back."""

    at: Timestamp = Field(description="When it was found.")
    what: Message = Field(description="The difference to the spec that was found.")


class DeclaredStatus(ApiModel):
    """The observed state that all of these resources have."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that was observed.")
    managed: bool = Field(
        default=False, description="The operator created or adopted the object, and keeps it as declared."
    )
    synced_generation: int | None = Field(
        default=None, description="Generation of the spec with which the object last agreed."
    )
    reverted: Reverted | None = Field(
        default=None, description="The latest change by others that the operator found and changes back."
    )
    conditions: tuple[Condition, ...] = conditions_field()


class DeclaredSpec(ApiModel):
    """The fields that the specs of all of these resources have."""

    managed_ledger_ref: LedgerRef = Field(
        description="The ManagedLedger whose brokers have the object. Cannot be changed.",
        json_schema_extra=validated_by(Rule("self == oldSelf", "managedLedgerRef cannot be changed")),
    )
    adoption_policy: AdoptionPolicy = Field(
        AdoptionPolicy.IF_EQUAL,
        description="What to do with an object that exists already. IfEqual: adopt it if nothing that is set has "
        "another value; otherwise report the differences. Always: overwrite them.",
    )
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="What happens to the object when the resource is deleted. Retain keeps it. Delete deletes it.",
    )


def set_once(name: str, text: str) -> Any:
    """Return an optional field that is the resource's name by default and cannot be changed."""
    return Field(
        None,
        description=f"{text} Default: the name of the resource. Cannot be changed.",
        json_schema_extra=validated_by(Rule("self == oldSelf", f"{name} cannot be changed: create another resource")),
    )


def stays_set(field: str) -> Rule:
    """Return the rule that an optional field is neither added nor removed, which rules of the field do not see."""
    return Rule(f"has(self.{field}) == has(oldSelf.{field})", f"{field} cannot be changed: create another resource")


class DeclaredResource(ApiModel):
    """A resource that declares an object of the brokers of a ManagedLedger."""

    KIND: ClassVar[str]
    NAMED_BY: ClassVar[str]
    """The field of the spec with the name of the object; without a value the resource's name counts."""

    api_version: Label = Field("", description="quire.dev/v1alpha1.")
    kind: Label = Field("", description="The kind.")
    metadata: AnyObject = Field(default_factory=dict, description="Name, namespace, labels.")
    spec: DeclaredSpec
    status: DeclaredStatus

    @property
    def meta(self) -> Metadata:
        """The fields of the metadata that the operator reads."""
        return Metadata.model_validate(self.metadata)

    @property
    def name(self) -> str:
        """The name of the object."""
        return str(getattr(self.spec, self.NAMED_BY) or self.meta.name)

    @classmethod
    def name_in(cls, manifest: Mapping[str, Any]) -> str:
        """Return the name of the object of a manifest that is not parsed: there may be hundreds."""
        return str(manifest["spec"].get(cls.NAMED_BY) or manifest["metadata"]["name"])


def status_field(kind: type[DeclaredStatus]) -> Any:
    """Return the field of the status."""
    return part(kind, "Observed state. Written by the operator.")
