"""`ManagedLedger`: what a user writes about a namespace of topics. Shapes, defaults and rules; nothing is looked up."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from quire_operator.api.bookie_spec import settings_rule
from quire_operator.api.fields import ApiModel, Duration, Label, Name, Quantity, Rule, judged_by, keyed, section
from quire_operator.api.jobs_spec import ANALYTICS_MAX, Analytics, Offload, Spark
from quire_operator.api.shared import (
    ALGORITHM_HELP,
    IMAGE_HELP,
    KEY_TYPE_HELP,
    RESOURCES_HELP,
    SETTINGS_HELP,
    SETTINGS_MAX,
    TEMPLATE_HELP,
    Algorithm,
    Image,
    Monitoring,
    PodTemplate,
    Resources,
    SettingValue,
    Tls,
    TokenKeyType,
)

_WORD = r"[-=:.A-Za-z0-9_]*[-=:A-Za-z0-9_][-=:.A-Za-z0-9_]*"
"""As Pulsar has it, but not of dots alone: `..` would lead to another path of the admin REST."""
Namespace = Annotated[str, StringConstraints(pattern=rf"^{_WORD}/{_WORD}$", max_length=200)]
PulsarName = Annotated[str, StringConstraints(pattern=rf"^{_WORD}$", min_length=1, max_length=200)]
Port = Annotated[int, Field(ge=1, le=65535)]
PARTITIONS_MAX = 1024
TOPICS_MAX = 500
CURSORS_MAX = 64

_NAMESPACE_STAYS = Rule(
    "self == oldSelf", "namespace cannot be changed: topics do not move; make another ManagedLedger"
)

RESERVED_BROKER_SETTINGS = (
    *(
        "brokerServicePortTls",
        "webServicePortTls",
        "metadataStoreUrl",
        "brokerServicePort",
        "webServicePort",
        "advertisedAddress",
        "advertisedListeners",
        "bindAddress",
        "clusterName",
    ),
    *("managedLedgerDefaultEnsembleSize", "managedLedgerDefaultWriteQuorum", "managedLedgerDefaultAckQuorum"),
)


class ServiceType(StrEnum):
    """How clients reach the brokers."""

    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


class ClientService(ApiModel):
    """The Service that clients connect to."""

    type: ServiceType = Field(ServiceType.CLUSTER_IP, description="Type of the Service.")
    annotations: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=64, description="Annotations, for load balancers."
    )


class AdvertisedListener(ApiModel):
    """Another address under which clients reach a broker."""

    name: PulsarName = Field(description="Name that clients ask for.")
    host: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(description="Host name or address.")
    port: Port = Field(6650, description="Port.")


class Authentication(ApiModel):
    """Clients show a token, and do what their role may. Roles get rights by the brokers' admin REST."""

    token_key_secret: Name = Field(
        description="Secret with token.key (`quire tokens create-secret-key`, or the public key of a pair) and "
        "operator.token: a token of the role quire-operator, by which the operator asks the brokers."
    )
    key_type: TokenKeyType = Field(TokenKeyType.SECRET, description=KEY_TYPE_HELP)
    algorithm: Algorithm = Field("RS256", description=ALGORITHM_HELP)
    super_user_roles: tuple[Label, ...] = Field(
        (), max_length=64, description="Roles that may do everything, beside quire-operator."
    )


class Brokers(ApiModel):
    """The processes that serve the namespace."""

    RULES = (
        Rule(
            "self.replicas <= 1",
            "brokers.replicas must be 0 or 1: several brokers of one namespace are not supported yet",
            ".replicas",
        ),
        settings_rule(RESERVED_BROKER_SETTINGS),
    )

    replicas: Annotated[int, Field(ge=0, le=100)] = Field(1, description="Brokers: 1, or 0 to stop serving.")
    image: Image | None = Field(None, description=IMAGE_HELP)
    resources: Resources = section(Resources, RESOURCES_HELP)
    service: ClientService = section(ClientService, "The Service for clients.")
    advertised_listeners: tuple[AdvertisedListener, ...] = keyed("name", 16, "Further addresses for clients.")
    cache: Quantity = Field("64Mi", description="Cache of recent entries for tail reads.")
    tls: Tls | None = Field(
        None, description="TLS of the brokers' ports, 6651 and 8443. Default: with generated certificates, or none."
    )
    authentication: Authentication | None = Field(None, description="Default: everybody may do everything.")
    ledger_password_secret: Name | None = Field(
        None,
        description="Secret with password: that of the ledgers which the brokers make. Default: one that the operator "
        "makes, <name>-ledger-password.",
    )
    pod_template: PodTemplate = section(PodTemplate, TEMPLATE_HELP)
    settings: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=SETTINGS_MAX, description=SETTINGS_HELP
    )


class Replication(ApiModel):
    """On how many bookies an entry is, and how many must have it before it is acknowledged. Of new ledgers."""

    RULES = (
        Rule(
            "self.ackQuorum <= self.writeQuorum", "replication: ackQuorum must not be above writeQuorum", ".ackQuorum"
        ),
        Rule(
            "self.writeQuorum <= self.ensemble", "replication: writeQuorum must not be above ensemble", ".writeQuorum"
        ),
    )

    ensemble: Annotated[int, Field(ge=1, le=100)] = Field(3, description="Bookies that a ledger is spread over (E).")
    write_quorum: Annotated[int, Field(ge=1, le=100)] = Field(3, description="Bookies that get each entry (Qw).")
    ack_quorum: Annotated[int, Field(ge=1, le=100)] = Field(2, description="Answers that acknowledge an entry (Qa).")


class Rollover(ApiModel):
    """When a topic begins a new ledger. Retention and offload work by whole ledgers."""

    RULES = (
        Rule(
            "duration(self.minTime) <= duration(self.maxTime)",
            "rollover: minTime must not be above maxTime",
            ".minTime",
        ),
        Rule("duration(self.maxTime) >= duration('1m')", "rollover: maxTime must be a minute or more", ".maxTime"),
        Rule(
            "quantity(self.maxSize).compareTo(quantity('1Mi')) >= 0",
            "rollover: maxSize must be 1Mi or more",
            ".maxSize",
        ),
    )

    max_entries: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(50_000, description="After so many entries.")
    max_size: Quantity = Field("2Gi", description="At this size.")
    min_time: Duration = Field("10m", description="Never younger than this.")
    max_time: Duration = Field("4h", description="At this age.")


Forever = Annotated[str, StringConstraints(pattern=r"^(forever|([0-9]+(s|m|h))+)$", max_length=32)]
Unbounded = Annotated[
    str, StringConstraints(pattern=r"^(unbounded|[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?)$", max_length=32)
]


class Retention(ApiModel):
    """What is kept of consumed data, and what becomes of data that nobody consumes."""

    RULES = (
        Rule(
            "has(self.time) == has(self.size)",
            "retention: time and size go together; 'forever' and 'unbounded' leave one of them open",
            ".time",
        ),
    )

    time: Forever | None = Field(None, description="Keep what was consumed so long, or `forever`.")
    size: Unbounded | None = Field(None, description="Keep so much of it per topic, or `unbounded`.")
    ttl: Duration | None = Field(
        None,
        description="Acknowledge by itself what was not consumed after so long. Taken out of the spec the policy "
        "of the namespace stays: 0s ends it.",
    )


class BacklogPolicy(StrEnum):
    """What happens to a topic whose backlog is too large."""

    HOLD = "ProducerRequestHold"
    REFUSE = "ProducerException"
    EVICT = "ConsumerBacklogEviction"


class BacklogQuota(ApiModel):
    """How far behind a cursor may be."""

    RULES = (
        Rule("has(self.size) || has(self.time)", "backlogQuota: size or time is needed"),
        Rule(
            "!has(self.size) || quantity(self.size).compareTo(quantity('1')) >= 0",
            "backlogQuota: size must be 1 or more",
            ".size",
        ),
        Rule(
            "!has(self.time) || duration(self.time) >= duration('1s')",
            "backlogQuota: time must be 1s or more",
            ".time",
        ),
    )

    size: Quantity | None = Field(None, description="Bytes behind the slowest cursor of a topic.")
    time: Duration | None = Field(None, description="Age of the oldest message that is not consumed.")
    policy: BacklogPolicy = Field(BacklogPolicy.HOLD, description="What happens then.")


class InitialPosition(StrEnum):
    """Where a new cursor begins."""

    EARLIEST = "Earliest"
    LATEST = "Latest"


class Cursor(ApiModel):
    """A durable subscription that is there before its consumers."""

    name: PulsarName = Field(description="Name of the subscription.")
    initial_position: InitialPosition = Field(
        InitialPosition.EARLIEST, description="Where it begins; has no effect on one that exists."
    )


class Topic(ApiModel):
    """A topic that is kept there."""

    RULES = (
        Rule(
            "self.partitions >= oldSelf.partitions",
            "topics: partitions only grow, keys would go to other partitions and none may be lost",
            ".partitions",
        ),
        Rule(
            "(self.partitions == 0) == (oldSelf.partitions == 0)",
            "topics: a topic without partitions cannot become a partitioned one, nor the reverse",
            ".partitions",
        ),
    )

    name: PulsarName = Field(description="Name within the namespace.")
    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_MAX)] = Field(
        0, description="Partitions; 0: not partitioned. Only grows."
    )
    cursors: tuple[Cursor, ...] = keyed("name", CURSORS_MAX, "Durable subscriptions.")


class AccessAction(StrEnum):
    """What a role may do."""

    PRODUCE = "Produce"
    CONSUME = "Consume"
    ADMIN = "Admin"


class Access(ApiModel):
    """What a role may do in the namespace."""

    role: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(description="The role.")
    actions: tuple[AccessAction, ...] = Field(
        min_length=1, max_length=3, description="What it may do.", json_schema_extra={"x-kubernetes-list-type": "set"}
    )


class DeletionPolicy(StrEnum):
    """What becomes of the data when the resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class BookieRef(ApiModel):
    """A Bookie of the same Kubernetes namespace."""

    name: Name = Field(description="Its name.")


class ManagedLedgerSpec(ApiModel):
    """A namespace of topics with its own brokers."""

    bookie_ref: BookieRef = Field(description="The pool whose cluster keeps the data.")
    namespace: Namespace = Field(
        description="tenant/namespace of the topics. Cannot be changed.",
        json_schema_extra=judged_by(_NAMESPACE_STAYS),
    )
    brokers: Brokers = section(Brokers, "The processes that serve it.")
    replication: Replication = section(Replication, "On how many bookies an entry is.")
    rollover: Rollover = section(Rollover, "When a topic begins a new ledger.")
    retention: Retention = section(Retention, "What is kept.")
    backlog_quota: BacklogQuota | None = Field(
        None,
        description="How far behind a cursor may be. Default: nothing is set. Taken out of the spec the policies of "
        "the namespace stay, until somebody removes them by the brokers' admin REST.",
    )
    topics: tuple[Topic, ...] = keyed("name", TOPICS_MAX, "Topics that are kept there; others are left alone.")
    access: tuple[Access, ...] = keyed("role", 256, "Roles and what they may do. Empty: nobody is asked.")
    offload: Offload | None = Field(None, description="Copies in object storage. Default: none.")
    analytics: tuple[Analytics, ...] = keyed("name", ANALYTICS_MAX, "Jobs over the data.")
    spark: Spark = section(Spark, "How those jobs run.")
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN, description="Retain keeps topics and data when the resource is deleted."
    )
    monitoring: Monitoring = section(Monitoring, "Scraping by Prometheus.")
    paused: bool = Field(False, description="The operator looks and reports, and changes nothing.")
