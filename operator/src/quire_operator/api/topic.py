"""`Topic`: a topic with its partitions and subscriptions. Models only."""

from typing import Annotated, ClassVar

from pydantic import Field

from quire_operator.api.declared import (
    NAMESPACE_STAYS,
    DeclaredResource,
    DeclaredSpec,
    DeclaredStatus,
    set_once,
    status_field,
    stays_set,
)
from quire_operator.api.fields import Label, Rule, Whole, keyed, validated_by
from quire_operator.api.managed_ledger_spec import (
    CURSORS_MAX,
    PARTITIONS_MAX,
    Cursor,
    DeletionPolicy,
    Namespace,
    PulsarName,
)

_OF_PARTITION = "-partition-[0-9]+$"


class TopicSpec(DeclaredSpec):
    """A topic."""

    RULES = (
        stays_set("topic"),
        stays_set("namespace"),
        Rule(
            "self.partitions >= oldSelf.partitions",
            "partitions only grow: removing one would lose its messages and move keys",
            ".partitions",
        ),
        Rule(
            "(self.partitions == 0) == (oldSelf.partitions == 0)",
            "a topic without partitions cannot become a partitioned one, or the reverse",
            ".partitions",
        ),
    )

    namespace: Namespace | None = Field(
        None,
        description="tenant/namespace. Default: the namespace of the ManagedLedger. Cannot be changed.",
        json_schema_extra=validated_by(NAMESPACE_STAYS),
    )
    topic: PulsarName | None = set_once("topic", "Its name within the namespace.")
    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_MAX)] = Field(
        0, description="Number of partitions; 0: not partitioned. Can only grow."
    )
    subscriptions: tuple[Cursor, ...] = keyed(
        "name", CURSORS_MAX, "Durable subscriptions that must exist; others are left alone."
    )
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN,
        description="Retain keeps the topic and its data when the resource is deleted. Delete deletes both, once no "
        "producer and no consumer is connected.",
    )


class TopicStatus(DeclaredStatus):
    """The observed state; totals over the partitions."""

    topic: str | None = Field(default=None, description="Full name, persistent://tenant/namespace/topic.")
    partitions: Whole | None = Field(
        default=None, description="Existing partitions; 0: not partitioned. Absent while no broker responds."
    )
    producers: Whole | None = Field(
        default=None, description="Connected producers. Absent while the topic is not loaded."
    )
    subscriptions: Whole | None = Field(default=None, description="Durable subscriptions.")
    backlog: Whole | None = Field(
        default=None, description="Largest backlog of a subscription, in entries. Absent while none is known."
    )
    entries: Whole | None = Field(default=None, description="Stored entries.")
    size_bytes: Whole | None = Field(default=None, description="Size of the stored entries.")
    owner: Label | None = Field(default=None, description="Pod that owns the topic, or its first partition.")


class TopicResource(DeclaredResource):
    """A topic of a namespace that the brokers of a ManagedLedger serve."""

    RULES = (
        Rule(
            f"!(has(self.spec.topic) ? self.spec.topic : self.metadata.name).matches('{_OF_PARTITION}')",
            "a name that ends like a partition (-partition-0) is that of a partition: choose another one",
        ),
    )
    KIND: ClassVar[str] = "Topic"
    NAMED_BY: ClassVar[str] = "topic"

    spec: TopicSpec = Field(description="Desired state.")
    status: TopicStatus = status_field(TopicStatus)
