"""`ManagedLedger`: the spec of a namespace of topics. Models, defaults and validation rules only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from quire_operator.api.bookie_spec import settings_rule
from quire_operator.api.fields import ApiModel, Duration, Label, Name, Quantity, Rule, keyed, section, validated_by
from quire_operator.api.jobs_spec import ANALYTICS_MAX, DATA_JOBS_MAX, Analytics, DataJob, Offload, Spark
from quire_operator.api.proxy_spec import Proxy
from quire_operator.api.shared import (
    ALGORITHM_HELP,
    IMAGE_HELP,
    KEY_TYPE_HELP,
    PRIORITY_HELP,
    RESOURCES_HELP,
    SETTINGS_HELP,
    SETTINGS_MAX,
    TEMPLATE_HELP,
    Algorithm,
    ClientService,
    Image,
    Monitoring,
    PodTemplate,
    Resources,
    SettingValue,
    Tls,
    TokenKeyType,
)

PULSAR_WORD = r"[-=:.A-Za-z0-9_]*[-=:A-Za-z0-9_][-=:.A-Za-z0-9_]*"
"""As in Pulsar, but never only dots: `..` would lead to another path of the admin REST API."""
Namespace = Annotated[str, StringConstraints(pattern=rf"^{PULSAR_WORD}/{PULSAR_WORD}$", max_length=200)]
PulsarName = Annotated[str, StringConstraints(pattern=rf"^{PULSAR_WORD}$", min_length=1, max_length=200)]
Port = Annotated[int, Field(ge=1, le=65535)]
BROKERS_MAX = 100
PARTITIONS_MAX = 1024
TOPICS_MAX = 500
CURSORS_MAX = 64

_NAMESPACE_STAYS = Rule(
    "self == oldSelf", "namespace cannot be changed: topics do not move; create another ManagedLedger"
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
        "advertisedListenersFile",
        "bindAddress",
        "bindAddresses",
        "clusterName",
    ),
    *("managedLedgerDefaultEnsembleSize", "managedLedgerDefaultWriteQuorum", "managedLedgerDefaultAckQuorum"),
)


class AdvertisedListener(ApiModel):
    """Another address under which clients reach a broker."""

    name: PulsarName = Field(description="Listener name that clients request.")
    host: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(description="Host name or address.")
    port: Port = Field(6650, description="Port.")


class ExternalType(StrEnum):
    """How clients outside the cluster reach each broker."""

    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"


class External(ApiModel):
    """A Service for each broker, whose address lookups of clients outside the cluster return."""

    type: ExternalType = Field(description="LoadBalancer: its address. NodePort: the node's address and that port.")
    listener_name: PulsarName = Field("external", description="Listener name that clients request.")
    annotations: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=64, description="Annotations of the Services, for load balancers."
    )


class Authentication(ApiModel):
    """Clients must present a token; its role determines their permissions, granted by the brokers' admin REST API."""

    token_key_secret: Name = Field(
        description="Secret with token.key (`quire tokens create-secret-key`, or the public key of a pair) and "
        "operator.token, a token of the role quire-operator with which the operator authenticates to the brokers. With "
        "spec.proxy also proxy.token, a token of the role quire-proxy."
    )
    key_type: TokenKeyType = Field(TokenKeyType.SECRET, description=KEY_TYPE_HELP)
    algorithm: Algorithm = Field("RS256", description=ALGORITHM_HELP)
    super_user_roles: tuple[Label, ...] = Field(
        (), max_length=64, description="Roles with full access, in addition to quire-operator."
    )


class Rollout(ApiModel):
    """How a change reaches the brokers: one pod first, and back to the last revision that worked if it fails."""

    RULES = (
        Rule(
            "duration(self.readyWithin) >= duration('10s')", "rollout: readyWithin must be 10s or more", ".readyWithin"
        ),
    )

    ready_within: Duration = Field(
        "5m",
        description="Maximum time until the first pod of a change is ready. After it the operator returns to the last "
        "revision that worked, and tries again when the spec changes.",
    )
    stable_for: Duration = Field("10s", description="How long that pod must stay ready before the others follow.")


class Brokers(ApiModel):
    """The processes that serve the namespace."""

    RULES = (settings_rule(RESERVED_BROKER_SETTINGS),)

    replicas: Annotated[int, Field(ge=0, le=BROKERS_MAX)] = Field(
        1,
        description="Number of brokers; 0 stops serving. Of fewer brokers, the last ones are drained before they end.",
    )
    drain_deadline: Duration = Field(
        "10m",
        description="How long a broker that leaves may hand over no bundle. Then it ends nevertheless, and the others "
        "recover the ledgers of its topics; not while no other broker takes bundles.",
    )
    target_usage: Annotated[int, Field(ge=1, le=95)] = Field(
        60, description="Percentage of its CPU or network that a broker should use; status.brokerLoad recommends by it."
    )
    image: Image | None = Field(None, description=IMAGE_HELP)
    resources: Resources = section(Resources, RESOURCES_HELP)
    service: ClientService = section(ClientService, "The Service for clients.")
    advertised_listeners: tuple[AdvertisedListener, ...] = keyed("name", 16, "Further addresses for clients.")
    external: External | None = Field(
        None, description="An address of each broker for clients outside the cluster. Default: none."
    )
    cache: Quantity | None = Field(
        None,
        description="Cache of entries: three quarters for appended ones, the rest for those that were read. "
        "Default: from the limit of memory; without one 64Mi.",
    )
    tls: Tls | None = Field(
        None, description="TLS of the brokers' ports, 6651 and 8443. Default: with generated certificates, or none."
    )
    authentication: Authentication | None = Field(None, description="Default: every client has full access.")
    ledger_password_secret: Name | None = Field(
        None,
        description="Secret with the key password: the password of the ledgers that the brokers create. Default: "
        "<name>-ledger-password, generated by the operator.",
    )
    priority_class_name: Name | None = Field(None, description=PRIORITY_HELP)
    rollout: Rollout = section(Rollout, "How a change reaches the pods.")
    pod_template: PodTemplate = section(PodTemplate, TEMPLATE_HELP)
    settings: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=SETTINGS_MAX, description=SETTINGS_HELP
    )


class Replication(ApiModel):
    """How many bookies store an entry, and how many must have it before it is acknowledged. Applies to new ledgers."""

    RULES = (
        Rule(
            "self.ackQuorum <= self.writeQuorum", "replication: ackQuorum must not be above writeQuorum", ".ackQuorum"
        ),
        Rule(
            "self.writeQuorum <= self.ensemble", "replication: writeQuorum must not be above ensemble", ".writeQuorum"
        ),
    )

    ensemble: Annotated[int, Field(ge=1, le=100)] = Field(3, description="Bookies that a ledger is spread over (E).")
    write_quorum: Annotated[int, Field(ge=1, le=100)] = Field(3, description="Copies of each entry (Qw).")
    ack_quorum: Annotated[int, Field(ge=1, le=100)] = Field(
        2, description="Durable copies that acknowledge an entry (Qa)."
    )


class Rollover(ApiModel):
    """When a topic begins a new ledger. Retention and offload handle whole ledgers."""

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

    max_entries: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(50_000, description="Maximum entries of a ledger.")
    max_size: Quantity = Field("2Gi", description="Maximum size of a ledger.")
    min_time: Duration = Field("10m", description="Minimum age of a ledger before it is closed.")
    max_time: Duration = Field("4h", description="Maximum age of a ledger before it is closed.")


Forever = Annotated[str, StringConstraints(pattern=r"^(forever|([0-9]+(s|m|h))+)$", max_length=32)]
Unbounded = Annotated[
    str, StringConstraints(pattern=r"^(unbounded|[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?)$", max_length=32)
]


class Retention(ApiModel):
    """How long consumed data are kept, and what happens to data that are not consumed."""

    RULES = (
        Rule(
            "has(self.time) == has(self.size)",
            "retention: time and size go together; use 'forever' or 'unbounded' for no limit",
            ".time",
        ),
    )

    time: Forever | None = Field(None, description="How long consumed data are kept, or `forever`.")
    size: Unbounded | None = Field(None, description="How much consumed data is kept per topic, or `unbounded`.")
    ttl: Duration | None = Field(
        None,
        description="Age at which unconsumed messages are acknowledged automatically. Removing the field keeps the "
        "policy of the namespace; 0s removes it.",
    )


class BacklogPolicy(StrEnum):
    """The action when a backlog exceeds its quota."""

    HOLD = "ProducerRequestHold"
    REFUSE = "ProducerException"
    EVICT = "ConsumerBacklogEviction"


class BacklogQuota(ApiModel):
    """The maximum backlog of a cursor."""

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

    size: Quantity | None = Field(None, description="Backlog of the slowest cursor of a topic, in bytes.")
    time: Duration | None = Field(None, description="Age of the oldest unconsumed message.")
    policy: BacklogPolicy = Field(BacklogPolicy.HOLD, description="The action when the quota is exceeded.")


class InitialPosition(StrEnum):
    """Where a new cursor begins."""

    EARLIEST = "Earliest"
    LATEST = "Latest"


class Cursor(ApiModel):
    """A durable subscription that exists before its consumers."""

    name: PulsarName = Field(description="Name of the subscription.")
    initial_position: InitialPosition = Field(
        InitialPosition.EARLIEST, description="Where it begins; has no effect on an existing subscription."
    )


class Topic(ApiModel):
    """A topic that must exist."""

    RULES = (
        Rule(
            "self.partitions >= oldSelf.partitions",
            "topics: partitions only grow: removing one would lose its messages and move keys",
            ".partitions",
        ),
        Rule(
            "(self.partitions == 0) == (oldSelf.partitions == 0)",
            "topics: a topic without partitions cannot become a partitioned one, or the reverse",
            ".partitions",
        ),
    )

    name: PulsarName = Field(description="Name within the namespace.")
    partitions: Annotated[int, Field(ge=0, le=PARTITIONS_MAX)] = Field(
        0, description="Number of partitions; 0: not partitioned. Can only grow."
    )
    cursors: tuple[Cursor, ...] = keyed("name", CURSORS_MAX, "Durable subscriptions.")


class AccessAction(StrEnum):
    """An action that a role may be permitted."""

    PRODUCE = "Produce"
    CONSUME = "Consume"
    ADMIN = "Admin"


class Access(ApiModel):
    """The permissions of a role in the namespace."""

    role: Annotated[str, StringConstraints(min_length=1, max_length=253)] = Field(description="The role.")
    actions: tuple[AccessAction, ...] = Field(
        min_length=1, max_length=3, description="Its permissions.", json_schema_extra={"x-kubernetes-list-type": "set"}
    )


class DeletionPolicy(StrEnum):
    """What happens to the data when the resource is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class BookieRef(ApiModel):
    """A Bookie of the same Kubernetes namespace."""

    name: Name = Field(description="Its name.")


class ManagedLedgerSpec(ApiModel):
    """A namespace of topics with its own brokers."""

    RULES = (
        Rule(
            "!has(self.analytics) || !has(self.jobs) || "
            "self.jobs.all(job, !self.analytics.exists(one, one.name == job.name))",
            "jobs: an entry has the name of one in analytics; rename one of the two",
            ".jobs",
        ),
    )

    bookie_ref: BookieRef = Field(description="The pool whose cluster stores the data.")
    namespace: Namespace = Field(
        description="tenant/namespace of the topics. Cannot be changed.",
        json_schema_extra=validated_by(_NAMESPACE_STAYS),
    )
    brokers: Brokers = section(Brokers, "The processes that serve it.")
    proxy: Proxy | None = Field(
        None, description="One address for clients that cannot reach each broker. Default: none."
    )
    replication: Replication = section(Replication, "How many bookies store an entry.")
    rollover: Rollover = section(Rollover, "When a topic begins a new ledger.")
    retention: Retention = section(Retention, "How long data are kept.")
    backlog_quota: BacklogQuota | None = Field(
        None,
        description="Maximum backlog of a cursor. Default: not set. Removing the field keeps the policies of the "
        "namespace; remove them through the brokers' admin REST API.",
    )
    topics: tuple[Topic, ...] = keyed("name", TOPICS_MAX, "Topics that must exist; others are left alone.")
    access: tuple[Access, ...] = keyed("role", 256, "Roles and their permissions. Empty: grants are left alone.")
    offload: Offload | None = Field(None, description="Copies in object storage. Default: none.")
    analytics: tuple[Analytics, ...] = keyed("name", ANALYTICS_MAX, "Jobs that analyze the data.")
    jobs: tuple[DataJob, ...] = keyed("name", DATA_JOBS_MAX, "Jobs that compact topics or keep them as tables.")
    spark: Spark = section(Spark, "How the jobs run.")
    deletion_policy: DeletionPolicy = Field(
        DeletionPolicy.RETAIN, description="Retain keeps topics and data when the resource is deleted."
    )
    monitoring: Monitoring = section(Monitoring, "Scraping by Prometheus.")
    paused: bool = Field(False, description="The operator observes and reports, and changes nothing.")
