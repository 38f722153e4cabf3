"""`Bookie`: the spec of a pool of bookies. Models, defaults and validation rules only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from quire_operator.api.autoscaling import REPLICAS_MAX, Autoscale
from quire_operator.api.bookie_storage import Storage, Watermarks
from quire_operator.api.fields import ApiModel, Duration, Label, Name, Quantity, Rule, names, section
from quire_operator.api.shared import (
    ALGORITHM_HELP,
    IMAGE_HELP,
    KEY_TYPE_HELP,
    PRIORITY_HELP,
    RESOURCES_HELP,
    SETTING_PATTERN,
    SETTINGS_HELP,
    SETTINGS_MAX,
    TEMPLATE_HELP,
    Algorithm,
    Image,
    MetadataStore,
    Monitoring,
    PodTemplate,
    Resources,
    SettingValue,
    Tls,
    TokenKeyType,
)
from quire_operator.api.slow_bookies import SlowBookies

ZONE_KEY = "topology.kubernetes.io/zone"

RESERVED_SETTINGS = (
    *("metadataServiceUri", "bookiePort", "httpServerPort", "advertisedAddress", "listeningAddress", "data"),
    *("bookieId", "bookieIdScheme", "useHostNameAsBookieID"),
    *("bookieRack", "bookieRackAnnotation", "bookieRackAnnotationsFile"),
    *("journalDirectories", "ledgerDirectories", "indexDirectories", "allowStorageExpansion", "acceptLostVolumes"),
    *("journalSyncData", "journalWriteData", "acknowledgeDataLossRisk", "forceReadOnlyBookie"),
)
"""Keys that are set by other fields, or that must never stay set: `settings` would hide a risky one.

In BookKeeper's spelling only: `settings` accepts no other, so that a key has one name here.
"""


def settings_rule(reserved: tuple[str, ...]) -> Rule:
    """Return the rule that `settings` has only keys as spelled in docs/configuration.md, and no `reserved` ones."""
    taken = ", ".join(f"'{key}'" for key in reserved)
    return Rule(
        f"!has(self.settings) || self.settings.all(key, key.matches('{SETTING_PATTERN}') && !(key in [{taken}]))",
        "settings: a key is misspelled, or belongs to another field of the spec",
        ".settings",
    )


class JournalMode(StrEnum):
    """The failures of a bookie that its acknowledged entries survive."""

    SYNC = "Sync"
    NO_SYNC = "NoSync"
    DISABLED = "Disabled"


class Durability(ApiModel):
    """When a bookie acknowledges an entry."""

    RULES = (
        Rule(
            "self.journal == 'Sync' || self.acknowledgeDataLossRisk",
            "journal NoSync and Disabled can lose acknowledged entries: set acknowledgeDataLossRisk to accept that",
            ".journal",
        ),
    )

    journal: JournalMode = Field(
        JournalMode.SYNC,
        description="What acknowledged entries survive. Sync: crashes and power loss. NoSync: a crash of the process. "
        "Disabled: only a clean shutdown.",
    )
    acknowledge_data_loss_risk: bool = Field(False, description="Accepts what NoSync and Disabled can lose.")


def at_least(section: str, bounds: dict[str, str], measure: str) -> tuple[Rule, ...]:
    """Return rules for minimum values that the processes require. `measure`: `quantity` or `duration`."""
    checks = {
        "quantity": "!has(self.{0}) || quantity(self.{0}).compareTo(quantity('{1}')) >= 0",
        "duration": "!has(self.{0}) || duration(self.{0}) >= duration('{1}')",
    }
    return tuple(
        Rule(checks[measure].format(name, least), f"{section}: {name} must be {least} or more", f".{name}")
        for name, least in bounds.items()
    )


COMPACTION_LEAST = {"bytesPerSecond": "1"}
ENGINE_LEAST = {"writeCache": "24Mi", "indexCache": "1Mi", "journalFileSize": "32Mi", "entryLogSize": "11Mi"}
ENGINE_LEAST_TIMES = {"flushInterval": "10ms", "gcInterval": "100ms"}
ENTRY_LOG_MOST = "1Gi"
SCRUB_LEAST = {"bytesPerSecond": "1Ki"}

_ONE_KIND = (
    "self.minorThreshold == 0 || self.majorThreshold == 0 || "
    "duration(self.minorInterval) == duration('0s') || duration(self.majorInterval) == duration('0s')"
)
Threshold = Annotated[int, Field(ge=0, le=99)]
"""Percentage of live data in an entry log; 0: never."""


class Compaction(ApiModel):
    """How the space of deleted entries is reclaimed from entry logs."""

    RULES = (
        *at_least("compaction", COMPACTION_LEAST, "quantity"),
        Rule(
            f"self.minorThreshold < self.majorThreshold || {_ONE_KIND}",
            "compaction: minorThreshold must be below majorThreshold",
            ".minorThreshold",
        ),
        Rule(
            f"duration(self.minorInterval) < duration(self.majorInterval) || {_ONE_KIND}",
            "compaction: minorInterval must be below majorInterval",
            ".minorInterval",
        ),
    )

    minor_threshold: Threshold = Field(
        20, description="Minor compaction rewrites entry logs with a lower percentage of live data."
    )
    minor_interval: Duration = Field("1h", description="Interval between minor compactions.")
    major_threshold: Threshold = Field(
        80, description="Major compaction rewrites entry logs with a lower percentage of live data."
    )
    major_interval: Duration = Field("24h", description="Interval between major compactions.")
    bytes_per_second: Quantity = Field("16Mi", description="Live bytes that are copied per second.")


class Engine(ApiModel):
    """Caches, files and budgets of a bookie."""

    RULES = (
        settings_rule(RESERVED_SETTINGS),
        *at_least("engine", ENGINE_LEAST, "quantity"),
        *at_least("engine", ENGINE_LEAST_TIMES, "duration"),
        Rule(
            f"quantity(self.entryLogSize).compareTo(quantity('{ENTRY_LOG_MOST}')) <= 0",
            f"engine: entryLogSize must be {ENTRY_LOG_MOST} or less",
            ".entryLogSize",
        ),
    )

    write_cache: Quantity | None = Field(
        None, description="Write cache, both halves together. Default: from the limit of memory; without one 128Mi."
    )
    read_cache: Quantity | None = Field(
        None, description="Read cache. Default: from the limit of memory; without one 64Mi."
    )
    index_cache: Quantity | None = Field(
        None, description="Cache of the index. Default: from the limit of memory; without one 64Mi."
    )
    journal_file_size: Quantity = Field(
        "512Mi", description="Size of a journal file; about five are kept per journal folder."
    )
    entry_log_size: Quantity = Field("1Gi", description="Size at which an entry log is closed.")
    flush_interval: Duration = Field("1m", description="Maximum time between flushes of the write cache.")
    gc_interval: Duration = Field("15m", description="Interval between garbage collections.")
    watermarks: Watermarks = section(Watermarks, "Disk usage limits of ledger folders.")
    compaction: Compaction = section(Compaction, "How space is reclaimed.")
    settings: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=SETTINGS_MAX, description=SETTINGS_HELP
    )


class AutoRecovery(ApiModel):
    """The processes that detect lost replicas and restore them."""

    replicas: Annotated[int, Field(ge=0, le=100)] = Field(
        2, description="Number of processes. With 0, the cluster needs those of another pool."
    )
    lost_bookie_delay: Duration = Field(
        "10m", description="How long a bookie may be absent before its ledgers are restored elsewhere."
    )
    bytes_per_second: Quantity = Field("64Mi", description="Bytes that one process copies per second.")
    resources: Resources = section(
        Resources, "CPU and memory of each process. Default: 256Mi requested, 512Mi at most."
    )


class Scrub(ApiModel):
    """Periodic reads of all stored entries, so that damage is found while other replicas exist."""

    RULES = at_least("scrub", SCRUB_LEAST, "quantity")

    interval: Duration = Field("168h", description="Interval between scrubs; 0s: never.")
    bytes_per_second: Quantity = Field("8Mi", description="Bytes of entry logs that are read per second.")


class Placement(ApiModel):
    """How bookies are spread over nodes and zones. Replicas of a ledger are spread over the same zones."""

    topology_keys: tuple[Label, ...] = names(4, "Node labels to spread over, the widest first.", (ZONE_KEY,))
    min_zones: Annotated[int, Field(ge=1, le=32)] = Field(1, description="Minimum number of zones of the pool.")
    enforce: bool = Field(False, description="True: a pod waits rather than violate the spread. False: best effort.")


class ScaleDownStrategy(StrEnum):
    """The reaction to fewer replicas."""

    DRAIN = "Drain"
    BLOCK = "Block"


class ScaleDown(ApiModel):
    """How bookies are removed."""

    strategy: ScaleDownStrategy = Field(
        ScaleDownStrategy.DRAIN,
        description="Drain: one at a time, after its ledgers were copied elsewhere and checked. Block: refused.",
    )
    deadline: Duration = Field(
        "24h", description="A drain that takes longer is reported; it continues and is never forced."
    )


class WaitFor(StrEnum):
    """The condition for replacing the next pod."""

    FULLY_REPLICATED = "FullyReplicated"
    WRITABLE = "Writable"


class Update(ApiModel):
    """How a changed pod template is rolled out."""

    max_unavailable: Annotated[int, Field(ge=1, le=10)] = Field(
        1,
        description="Pods are replaced one at a time. A serving pod is replaced only while fewer than this are "
        "unavailable for any reason: with 2, one unavailable pod does not stop the roll.",
    )
    wait_for: WaitFor = Field(
        WaitFor.FULLY_REPLICATED,
        description="Condition for the next pod. FullyReplicated: no ledger is under-replicated. Writable: none.",
    )
    partition: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = Field(
        0, description="Pods with a lower ordinal keep the old template."
    )


class BookieAuthentication(ApiModel):
    """Clients of the bookies must present a token, on the BookKeeper port and on the HTTP ports."""

    token_key_secret: Name = Field(
        description="Secret with token.key (`quire tokens create-secret-key`, or the public key of a pair) and a token "
        "of each of these roles: operator.token of quire-operator, bookie.token of quire-bookie (bookies and "
        "auto-recovery), broker.token of quire-broker (brokers and jobs)."
    )
    key_type: TokenKeyType = Field(TokenKeyType.SECRET, description=KEY_TYPE_HELP)
    algorithm: Algorithm = Field("RS256", description=ALGORITHM_HELP)
    roles: tuple[Label, ...] = names(64, "Further roles that may connect, and read over HTTP.")
    admin_roles: tuple[Label, ...] = names(
        64, "Further roles that may connect, and make changes over HTTP, such as deleting a ledger."
    )


class BookieSpec(ApiModel):
    """A pool of bookies; each pod is one bookie."""

    RULES = (
        Rule(
            "!self.placement.enforce || self.placement.minZones <= self.replicas",
            "placement.minZones is above replicas and enforced: some zone could never have a bookie",
            ".placement.minZones",
        ),
        Rule(
            "!has(self.autoscale) || (self.replicas >= self.autoscale.min && self.replicas <= self.autoscale.max)",
            "replicas is outside of autoscale.min and autoscale.max",
            ".replicas",
        ),
        Rule(
            "self.update.maxUnavailable == 1 || self.update.waitFor == 'Writable'",
            "update.waitFor FullyReplicated replaces pod by pod: maxUnavailable must be 1",
            ".update.maxUnavailable",
        ),
        Rule(
            "!has(self.authentication) || !has(self.tls) || self.tls.mode != 'Offered'",
            "authentication: tokens must not be sent in plaintext; set tls.mode to Required",
            ".authentication",
        ),
        Rule(
            "!has(self.authentication) || !has(self.tls) || !has(self.tls.authorizedRoles) || "
            "size(self.tls.authorizedRoles) == 0",
            "authentication: roles come from tokens; remove tls.authorizedRoles and use authentication.roles",
            ".authentication",
        ),
    )

    replicas: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = Field(
        3, description="Number of bookies. Lowering it drains one bookie at a time."
    )
    image: Image | None = Field(None, description=IMAGE_HELP)
    metadata: MetadataStore = Field(description="The cluster's etcd.")
    storage: Storage = Field(description="Volumes.")
    durability: Durability = section(Durability, "When a bookie acknowledges an entry.")
    engine: Engine = section(Engine, "Caches, files and budgets.")
    auto_recovery: AutoRecovery = section(AutoRecovery, "Restoring lost replicas.")
    scrub: Scrub = section(Scrub, "Checking all stored entries.")
    placement: Placement = section(Placement, "Spread over nodes and zones.")
    scale_down: ScaleDown = section(ScaleDown, "How bookies are removed.")
    update: Update = section(Update, "How changes are rolled out.")
    autoscale: Autoscale | None = Field(None, description="Scale by space and load. Default: never.")
    slow_bookies: SlowBookies = section(SlowBookies, "Finding bookies with a slow disk.")
    resources: Resources = section(Resources, RESOURCES_HELP)
    priority_class_name: Name | None = Field(None, description=f"{PRIORITY_HELP} Also of auto-recovery.")
    pod_template: PodTemplate = section(PodTemplate, TEMPLATE_HELP)
    tls: Tls | None = Field(
        None,
        description="TLS of the BookKeeper port, and of the HTTP port if mode is Required. Default: certificates "
        "generated by the operator if it runs with --tls generated (the chart's default), otherwise no TLS.",
    )
    authentication: BookieAuthentication | None = Field(
        None, description="Default: every client that can reach the ports has full access."
    )
    monitoring: Monitoring = section(Monitoring, "Scraping by Prometheus.")
    paused: bool = Field(False, description="The operator observes and reports, and changes nothing.")
