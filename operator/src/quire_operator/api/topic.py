"""`Topic`: a topic with its partitions and subscriptions. Models only."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from quire_operator.api.declared import (
    NAMESPACE_STAYS,
    DeclaredResource,
    DeclaredSpec,
    DeclaredStatus,
    set_once,
    status_field,
    stays_set,
)
from quire_operator.api.fields import ApiModel, Label, Rule, Whole, keyed, validated_by
from quire_operator.api.managed_ledger_spec import (
    CURSORS_MAX,
    PARTITIONS_MAX,
    Cursor,
    DeletionPolicy,
    Namespace,
    PulsarName,
)

_OF_PARTITION = "-partition-[0-9]+$"
DEFINITION_MAX = 65_536
PROPERTIES_MAX = 64


class SchemaKind(StrEnum):
    """A type of schema, by Pulsar's name."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"
    PROTOBUF_NATIVE = "PROTOBUF_NATIVE"
    KEY_VALUE = "KEY_VALUE"
    STRING = "STRING"
    BOOLEAN = "BOOLEAN"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    INSTANT = "INSTANT"
    LOCAL_DATE = "LOCAL_DATE"
    LOCAL_TIME = "LOCAL_TIME"
    LOCAL_DATE_TIME = "LOCAL_DATE_TIME"


_STRUCTURED = ("AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE")


class TopicSchema(ApiModel):
    """A schema that must be registered for a topic."""

    RULES = (
        Rule(
            f"(self.type in {list(_STRUCTURED)}) == (has(self.definition) && self.definition != '')",
            f"a schema of type {', '.join(_STRUCTURED)} needs a definition; one of another type has none",
            ".definition",
        ),
    )

    type: SchemaKind = Field(description="Its type.")
    definition: Annotated[str, StringConstraints(max_length=DEFINITION_MAX)] = Field(
        "",
        description="The text that Pulsar's REST API expects. AVRO, JSON and PROTOBUF: an Avro schema. "
        "PROTOBUF_NATIVE: the JSON of Pulsar's clients with the file descriptor set. KEY_VALUE: "
        '{"key": schema, "value": schema}.',
    )
    properties: dict[Label, Label] = Field(
        default_factory=dict,
        max_length=PROPERTIES_MAX,
        description="Properties of a new version. A version with the same definition is left as it is.",
    )


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
    topic_schema: TopicSchema | None = Field(
        None,
        alias="schema",
        description="Schema that must be registered, if the compatibility strategy of the namespace accepts it. Other "
        "versions are left alone, also newer ones.",
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
    schema_version: Whole | None = Field(default=None, description="Version of the declared schema.")
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
