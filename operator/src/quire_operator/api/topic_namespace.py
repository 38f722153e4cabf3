"""`TopicNamespace`: a further namespace of topics, served by the brokers of a ManagedLedger. Models only."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from quire_operator.api.declared import (
    NAMESPACE_STAYS,
    DeclaredResource,
    DeclaredSpec,
    DeclaredStatus,
    status_field,
)
from quire_operator.api.fields import Label, Whole, names, section, validated_by
from quire_operator.api.managed_ledger_spec import (
    BacklogQuota,
    DeletionPolicy,
    Namespace,
    Replication,
    Retention,
)


class SchemaCompatibility(StrEnum):
    """Which new versions of a schema a topic accepts."""

    NEVER = "AlwaysIncompatible"
    ALWAYS = "AlwaysCompatible"
    BACKWARD = "Backward"
    FORWARD = "Forward"
    FULL = "Full"
    BACKWARD_TRANSITIVE = "BackwardTransitive"
    FORWARD_TRANSITIVE = "ForwardTransitive"
    FULL_TRANSITIVE = "FullTransitive"


class TopicNamespaceSpec(DeclaredSpec):
    """A namespace of topics and its policies. Policies that are not set here are those of the brokers."""

    namespace: Namespace = Field(
        description="tenant/namespace. Cannot be changed.",
        json_schema_extra=validated_by(NAMESPACE_STAYS),
    )
    replication: Replication | None = Field(
        None, description="How many bookies store an entry. Default: as the ManagedLedger declares."
    )
    retention: Retention = section(Retention, "How long data are kept.")
    backlog_quota: BacklogQuota | None = Field(None, description="Maximum backlog of a cursor. Default: none.")
    schema_compatibility: SchemaCompatibility | None = Field(
        None, description="Which new versions of a schema its topics accept. Default: the setting of the brokers."
    )
    deduplication: bool | None = Field(
        None, description="Store a message that a producer repeats only once. Default: the setting of the brokers."
    )
    auto_topic_creation: bool | None = Field(
        None, description="Create topics when a client first uses them. Default: the setting of the brokers."
    )
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="Retain keeps the namespace when the resource is deleted. Delete deletes it, once it has no topic.",
    )


class TopicNamespaceStatus(DeclaredStatus):
    """The observed state."""

    topics: Whole | None = Field(default=None, description="Its topics. Absent while no broker responds.")
    backlog: Whole | None = Field(
        default=None, description="Largest known backlog of a subscription, in entries. Absent while none is known."
    )
    size_bytes: Whole | None = Field(default=None, description="Size of the stored entries.")
    policies: tuple[Label, ...] = names(32, "Policies that the operator set, and removes once they are not declared.")


class TopicNamespace(DeclaredResource):
    """A namespace of topics, besides the one that a ManagedLedger declares itself."""

    KIND: ClassVar[str] = "TopicNamespace"
    NAMED_BY: ClassVar[str] = "namespace"

    spec: TopicNamespaceSpec = Field(description="Desired state.")
    status: TopicNamespaceStatus = status_field(TopicNamespaceStatus)
