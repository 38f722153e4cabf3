"""`Bookie`: what a user writes about a pool of bookies. Shapes, defaults and rules; nothing is looked up."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from quire_operator.api.bookie_storage import Storage, Watermarks
from quire_operator.api.fields import ApiModel, Duration, Label, Name, Quantity, Rule, names, section
from quire_operator.api.shared import (
    ALGORITHM_HELP,
    IMAGE_HELP,
    KEY_TYPE_HELP,
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

REPLICAS_MAX = 250
ZONE_KEY = "topology.kubernetes.io/zone"

RESERVED_SETTINGS = (
    *("metadataServiceUri", "bookiePort", "httpServerPort", "advertisedAddress", "listeningAddress", "data"),
    *("bookieId", "bookieIdScheme", "useHostNameAsBookieID"),
    *("bookieRack", "bookieRackAnnotation", "bookieRackAnnotationsFile"),
    *("journalDirectories", "ledgerDirectories", "indexDirectories", "allowStorageExpansion", "acceptLostVolumes"),
    *("journalSyncData", "journalWriteData", "acknowledgeDataLossRisk", "forceReadOnlyBookie"),
)
"""Keys that follow from other fields, or that must never stay set: a risky one would hide behind `settings`.

In BookKeeper's spelling only: `settings` takes no other, so that a key has one name here.
"""


def settings_rule(reserved: tuple[str, ...]) -> Rule:
    """Free settings are keys as docs/configuration.md spells them, and none that the operator sets itself."""
    taken = ", ".join(f"'{key}'" for key in reserved)
    return Rule(
        f"!has(self.settings) || self.settings.all(key, key.matches('{SETTING_PATTERN}') && !(key in [{taken}]))",
        "settings: a key is misspelled, or belongs to another field of the spec",
        ".settings",
    )


class JournalMode(StrEnum):
    """What an acknowledged entry survives on one bookie."""

    SYNC = "Sync"
    NO_SYNC = "NoSync"
    DISABLED = "Disabled"


class Durability(ApiModel):
    """When a bookie acknowledges."""

    RULES = (
        Rule(
            "self.journal == 'Sync' || self.acknowledgeDataLossRisk",
            "journal NoSync and Disabled can lose acknowledged entries: set acknowledgeDataLossRisk to accept that",
            ".journal",
        ),
    )

    journal: JournalMode = Field(
        JournalMode.SYNC,
        description="Sync: survives crash and power loss. NoSync: a crash of the process. Disabled: a clean stop only.",
    )
    acknowledge_data_loss_risk: bool = Field(False, description="Accepts what NoSync and Disabled can lose.")


def at_least(section: str, bounds: dict[str, str], measure: str) -> tuple[Rule, ...]:
    """What the processes refuse to start with is refused here. `measure`: `quantity` or `duration`."""
    judged = {
        "quantity": "quantity(self.{0}).compareTo(quantity('{1}')) >= 0",
        "duration": "duration(self.{0}) >= duration('{1}')",
    }
    return tuple(
        Rule(judged[measure].format(name, least), f"{section}: {name} must be {least} or more", f".{name}")
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
"""Per cent of a log that live; 0: never."""


class Compaction(ApiModel):
    """How space is won back from half-dead entry logs."""

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

    minor_threshold: Threshold = Field(20, description="A minor one rewrites logs of which less lives, in per cent.")
    minor_interval: Duration = Field("1h", description="Pause between minor compactions.")
    major_threshold: Threshold = Field(80, description="A major one rewrites logs of which less lives, in per cent.")
    major_interval: Duration = Field("24h", description="Pause between major compactions.")
    bytes_per_second: Quantity = Field("16Mi", description="Living bytes that are moved in a second.")


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

    write_cache: Quantity = Field("128Mi", description="Both halves of the write cache together.")
    read_cache: Quantity = Field("64Mi", description="Read cache.")
    index_cache: Quantity = Field("64Mi", description="Memory of the index.")
    journal_file_size: Quantity = Field("512Mi", description="A journal file; about five are kept per journal folder.")
    entry_log_size: Quantity = Field("1Gi", description="An entry log is sealed at this size.")
    flush_interval: Duration = Field("1m", description="The write cache is flushed at least so often.")
    gc_interval: Duration = Field("15m", description="Pause between garbage collections.")
    watermarks: Watermarks = section(Watermarks, "How full a ledger folder may be.")
    compaction: Compaction = section(Compaction, "How space is won back.")
    settings: dict[Label, SettingValue] = Field(
        default_factory=dict, max_length=SETTINGS_MAX, description=SETTINGS_HELP
    )


class AutoRecovery(ApiModel):
    """The processes that notice lost replicas and make new ones."""

    replicas: Annotated[int, Field(ge=0, le=100)] = Field(
        2, description="Processes; 0: none of this pool's, the cluster needs others then."
    )
    lost_bookie_delay: Duration = Field("10m", description="A bookie that is away is given so long.")
    bytes_per_second: Quantity = Field("64Mi", description="What one process copies in a second.")
    resources: Resources = section(Resources, "cpu and memory of each process.")


class Scrub(ApiModel):
    """Reading everything from time to time, so that damage is found while other replicas are there."""

    RULES = at_least("scrub", SCRUB_LEAST, "quantity")

    interval: Duration = Field("168h", description="Pause between two rounds; 0s: never.")
    bytes_per_second: Quantity = Field("8Mi", description="How fast entry logs are read.")


class Placement(ApiModel):
    """How bookies are spread over machines and zones; the zones are also what replicas of a ledger are spread over."""

    topology_keys: tuple[Label, ...] = names(4, "Node labels, the widest first, to spread over.", (ZONE_KEY,))
    min_zones: Annotated[int, Field(ge=1, le=32)] = Field(1, description="Zones that the pool must be spread over.")
    enforce: bool = Field(
        False, description="True: a pod waits rather than break the spread. False: as good as it goes."
    )


class ScaleDownStrategy(StrEnum):
    """What fewer replicas mean."""

    DRAIN = "Drain"
    BLOCK = "Block"


class ScaleDown(ApiModel):
    """How bookies leave."""

    strategy: ScaleDownStrategy = Field(
        ScaleDownStrategy.DRAIN,
        description="Drain: one at a time, after everything on it was copied elsewhere and checked. Block: refused.",
    )
    deadline: Duration = Field(
        "24h", description="A drain that takes longer is reported; it goes on and is never forced."
    )


class WaitFor(StrEnum):
    """What must hold before the next pod is taken."""

    FULLY_REPLICATED = "FullyReplicated"
    WRITABLE = "Writable"


class Update(ApiModel):
    """How a changed pod template reaches the pods."""

    max_unavailable: Annotated[int, Field(ge=1, le=10)] = Field(
        1,
        description="Pods are replaced one after the other. A pod that serves is taken only while fewer than this are "
        "away for whatever reason: 2 goes on beside one that is away.",
    )
    wait_for: WaitFor = Field(
        WaitFor.FULLY_REPLICATED, description="Before the next pod: nothing is under-replicated, or merely writable."
    )
    partition: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = Field(
        0, description="Pods with a lower ordinal keep the old template."
    )


class Autoscale(ApiModel):
    """More bookies as the pool fills, fewer, by drain, as it empties."""

    RULES = (
        Rule("self.min <= self.max", "autoscale: min must not be above max", ".min"),
        Rule(
            "self.lowWatermark < self.highWatermark",
            "autoscale: lowWatermark must be below highWatermark",
            ".lowWatermark",
        ),
    )

    min: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = Field(description="Fewest bookies.")
    max: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = Field(description="Most bookies.")
    high_watermark: Annotated[int, Field(ge=1, le=99)] = Field(
        80, description="Per cent of the pool's space: fuller adds a bookie."
    )
    low_watermark: Annotated[int, Field(ge=0, le=98)] = Field(
        30, description="Per cent: the pool, with one bookie less, would still be below it."
    )


class BookieAuthentication(ApiModel):
    """Clients of the bookies show a token: on the BookKeeper port and on the HTTP ports."""

    token_key_secret: Name = Field(
        description="Secret with token.key (`quire tokens create-secret-key`, or the public key of a pair) and a token "
        "of each of these roles: operator.token of quire-operator, bookie.token of quire-bookie (bookies and "
        "auto-recovery), broker.token of quire-broker (brokers and jobs)."
    )
    key_type: TokenKeyType = Field(TokenKeyType.SECRET, description=KEY_TYPE_HELP)
    algorithm: Algorithm = Field("RS256", description=ALGORITHM_HELP)
    roles: tuple[Label, ...] = names(64, "Further roles that may connect, and read over HTTP.")
    admin_roles: tuple[Label, ...] = names(
        64, "Further roles that may connect, and change something over HTTP, such as deleting a ledger."
    )


class BookieSpec(ApiModel):
    """A pool of bookies, each pod one bookie."""

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
            "update.waitFor FullyReplicated goes pod by pod: maxUnavailable must be 1",
            ".update.maxUnavailable",
        ),
        Rule(
            "!has(self.authentication) || !has(self.tls) || self.tls.mode != 'Offered'",
            "authentication: no token is sent in clear beside TLS; set tls.mode to Required",
            ".authentication",
        ),
        Rule(
            "!has(self.authentication) || !has(self.tls) || !has(self.tls.authorizedRoles) || "
            "size(self.tls.authorizedRoles) == 0",
            "authentication: roles come from tokens; leave tls.authorizedRoles out and use authentication.roles",
            ".authentication",
        ),
    )

    replicas: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = Field(
        3, description="Bookies. Fewer goes through a drain, one bookie at a time."
    )
    image: Image | None = Field(None, description=IMAGE_HELP)
    metadata: MetadataStore = Field(description="The cluster's etcd.")
    storage: Storage = Field(description="Volumes.")
    durability: Durability = section(Durability, "When a bookie acknowledges.")
    engine: Engine = section(Engine, "Caches, files and budgets.")
    auto_recovery: AutoRecovery = section(AutoRecovery, "Making lost replicas anew.")
    scrub: Scrub = section(Scrub, "Checking everything stored.")
    placement: Placement = section(Placement, "Spread over machines and zones.")
    scale_down: ScaleDown = section(ScaleDown, "How bookies leave.")
    update: Update = section(Update, "How changes reach the pods.")
    autoscale: Autoscale | None = Field(None, description="Let the number of bookies follow the space. Default: never.")
    resources: Resources = section(Resources, RESOURCES_HELP)
    pod_template: PodTemplate = section(PodTemplate, TEMPLATE_HELP)
    tls: Tls | None = Field(
        None,
        description="TLS of the BookKeeper port, and of the HTTP port where mode is Required. Default: with "
        "certificates that the operator makes, where it runs with --tls generated (the chart's default); else none.",
    )
    authentication: BookieAuthentication | None = Field(
        None, description="Default: every client that reaches the ports may do everything."
    )
    monitoring: Monitoring = section(Monitoring, "Scraping by Prometheus.")
    paused: bool = Field(False, description="The operator looks and reports, and changes nothing.")
