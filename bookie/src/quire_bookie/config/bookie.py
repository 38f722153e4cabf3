"""Defines the settings of a bookie, under BookKeeper's key names if it has one."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from quire_bookie import limits
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.connections import ConnectionMemoryConfig
from quire_bookie.config.http_server import HttpServerConfig
from quire_bookie.config.ledger_client import LedgerClientConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.recovery import AutoRecoveryConfig
from quire_bookie.config.roles import TextList
from quire_bookie.config.slow_operations import SlowOperationsConfig
from quire_bookie.config.sources import NO_EFFECT
from quire_bookie.config.traces import TracesConfig
from quire_bookie.settings.collection import (
    FuseSettings,
    GarbageCollectionSettings,
    OverReplicatedSettings,
    QuarantineSettings,
)
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.rack import RackSettings
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.storage import StorageSettings

MIB = limits.MIB
_BOOKIE_ID = re.compile(r"[A-Za-z0-9:._-]+")


Port = Annotated[int, Field(ge=0, le=65535)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]


class StorageConfig(ConnectionMemoryConfig, SlowOperationsConfig, TracesConfig):
    """Settings of a bookie's journal and storage; shared by `quire bookie` and `quire standalone`."""

    SETTINGS: ClassVar[tuple[type, ...]] = (
        JournalSettings,
        StorageSettings,
        ScrubbingSettings,
        GarbageCollectionSettings,
        FuseSettings,
        QuarantineSettings,
        OverReplicatedSettings,
        CompactionSettings,
        DiskRules,
        ServiceSettings,
    )

    journal_submit: Literal["auto", "aio", "thread"] = Field(
        "auto",
        alias="journalSubmit",
        description="how a journal group is written to disk; auto uses the method that measured best",
    )
    acknowledge_data_loss_risk: bool = Field(
        False,
        alias="acknowledgeDataLossRisk",
        description="allows journalSyncData=false and journalWriteData=false, which can lose acknowledged entries",
    )
    journal_group_wait_ms: int = Field(
        0,
        alias="journalMaxGroupWaitMSec",
        ge=0,
        description="longest wait for a journal group to fill, in ms; always satisfied: a group never waits to fill",
        json_schema_extra={NO_EFFECT: "a journal group never waits to fill"},
    )
    accept_lost_volumes: bool = Field(
        False,
        alias="acceptLostVolumes",
        description="start in limbo with the intact data when folders of the bookie are empty or its journal is "
        "damaged; set it for one start",
    )
    index_cache_bytes: int = Field(
        limits.INDEX_CACHE_BYTES,
        alias="dbStorage_rocksDB_blockCacheSize",
        ge=MIB,
        description="memory of the index in bytes: block cache and write buffers",
    )
    rebuild_index_on_damage: bool = Field(
        False,
        alias="rebuildIndexOnDamage",
        description="a start with a damaged or missing index rebuilds it from the entry logs; false: it is refused",
    )
    metadata_session_timeout_ms: int = Field(
        int(limits.METADATA_SESSION_TIMEOUT_S * 1000),
        alias="zkTimeout",
        ge=1000,
        description="lease of the registration in the metadata store, in ms",
    )

    @model_validator(mode="after")
    def _risks_are_acknowledged(self) -> "StorageConfig":
        journal = self.part(JournalSettings)
        for key, value, risk in (
            ("journalWriteData", journal.write_data, "any end but a clean stop"),
            ("journalSyncData", journal.sync_data, "a loss of power"),
        ):
            if not value and not self.acknowledge_data_loss_risk:
                raise ValueError(
                    f"{key}=false loses acknowledged entries at {risk}; set acknowledgeDataLossRisk=true to accept it, "
                    f"or {key}=true"
                )
        return self


def _bookie_id(value: str) -> str:
    """Return the id. ValueError if it is not a valid node name of the metadata, or stock clients refuse it."""
    if value and (not _BOOKIE_ID.fullmatch(value) or len(value) > limits.BOOKIE_ID_CHARACTERS_MAX):
        raise ValueError(
            f"{value!r} is not an id; use at most {limits.BOOKIE_ID_CHARACTERS_MAX} letters, digits and any of . _ : -"
        )
    if value.lower() == "readonly" or value in (".", ".."):
        raise ValueError(f"{value!r} is reserved; choose another id, e.g. bookie-1")
    return value


def _machine(value: str) -> str:
    """Return the name. ValueError if it is too long or cannot be printed."""
    if len(value) > limits.MACHINE_CHARACTERS_MAX or not value.isprintable() or value != value.strip():
        raise ValueError(
            f"{value!r} is not a name of a machine; use at most {limits.MACHINE_CHARACTERS_MAX} printable characters, "
            "e.g. the name of the host or of the Kubernetes node"
        )
    return value


class BookieConfig(
    HttpServerConfig, MetadataAccessConfig, BookieSecurityConfig, LedgerClientConfig, AutoRecoveryConfig, StorageConfig
):
    """Settings of `quire bookie start`."""

    SETTINGS: ClassVar[tuple[type, ...]] = (RackSettings,)

    data: str = Field("./quire-data", description="folder for journal and ledgers, unless they have separate settings")
    metadata: str = Field(
        "", alias="metadataServiceUri", description="etcd://host:port,host:port: the cluster's metadata store"
    )
    port: Port = Field(3181, alias="bookiePort", description="port of the BookKeeper protocol; 0: a free one")
    listen: str = Field("0.0.0.0", alias="listeningAddress", description="address to listen on")
    advertise: str = Field(
        "", alias="advertisedAddress", description="host that clients connect to; default: host name"
    )
    machine: Annotated[str, AfterValidator(_machine)] = Field(
        "",
        alias="bookieMachine",
        description="name of the machine, which fails with all its bookies: copies of an entry are put on distinct "
        "machines; default: the host that clients connect to",
    )
    bookie_id: Annotated[str, AfterValidator(_bookie_id)] = Field(
        "", alias="bookieId", description="id of a new bookie; empty: according to bookieIdScheme"
    )
    bookie_id_scheme: Literal["address", "storage"] = Field(
        "address",
        alias="bookieIdScheme",
        description="id of a new bookie: address is host:port, as in BookKeeper; storage is the host name and eight "
        "random hex digits, for hosts whose volumes may be replaced by empty ones",
    )
    use_host_name_as_bookie_id: bool = Field(
        True,
        alias="useHostNameAsBookieID",
        description="the host in host:port is advertisedAddress or the host name; false: its IP address",
    )
    journal_directories: TextList = Field(
        [],
        alias="journalDirectories",
        description="folders of the journals; ledgers are distributed over them by id; default: <data>/journal",
    )
    ledger_directories: TextList = Field(
        [], alias="ledgerDirectories", description="folders of the entry logs; default: <data>/ledgers"
    )
    index_directories: TextList = Field(
        [], alias="indexDirectories", description="the one folder of the index; default: the first of ledgerDirectories"
    )
    allow_storage_expansion: bool = Field(
        False,
        alias="allowStorageExpansion",
        description="add empty folders that follow the known ones in the two lists to the bookie",
    )
    force_read_only_bookie: bool = Field(
        False, alias="forceReadOnlyBookie", description="start read-only and stay read-only, regardless of the disks"
    )
    http_port: int = Field(
        -1, alias="httpServerPort", ge=-1, le=65535, description="health and metrics over HTTP; -1 turns it off"
    )
    auto_recovery: bool = Field(
        False,
        alias="autoRecoveryDaemonEnabled",
        description="also run the auditor and replication workers in this process",
    )

    @classmethod
    def from_java_file(cls, found: dict[str, Any]) -> dict[str, Any]:
        """Map `journalDirectory` (old, one folder) and `httpServerEnabled` (a separate switch) to our keys.

        The files that BookKeeper and Pulsar ship contain both: ignoring the first would move the journal elsewhere,
        ignoring the second would open a port that was switched off.
        """
        keys = dict(found)
        folder = keys.pop("journalDirectory", None)
        if folder is not None:
            keys.setdefault("journalDirectories", folder)
        switch = keys.pop("httpServerEnabled", None)
        if switch is not None and str(switch).lower() != "true":
            keys.pop(cls.key_of("http_port"), None)
        elif switch is not None:
            keys.setdefault(cls.key_of("http_port"), limits.JAVA_HTTP_PORT)
        return keys

    @model_validator(mode="after")
    def _ports_and_folders_are_distinct(self) -> "BookieConfig":
        if self.port and self.port == self.http_port:
            raise ValueError(f"bookiePort and httpServerPort are both {self.port}; give each its own port")
        for key, value in (
            ("journalDirectories", self.journal_directories),
            ("ledgerDirectories", self.ledger_directories),
        ):
            twice = next((folder for folder in value if value.count(folder) > 1), None)
            if twice is not None:
                raise ValueError(f"{key} contains {twice} twice; remove one of them")
        if len(self.index_directories) > 1:
            raise ValueError(f"indexDirectories contains {len(self.index_directories)} folders; give one")
        return self
