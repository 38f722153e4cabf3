"""Volumes of a bookie: sizes, what happens to them afterwards, and which changes are refused. Models only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from quire_operator.api.fields import ApiModel, Label, Quantity, Rule

_IMMUTABLE_CLASS = Rule(
    "has(self.storageClassName) == has(oldSelf.storageClassName) && "
    "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
    "storageClassName cannot be changed: create another Bookie pool with the new class and drain this one",
    ".storageClassName",
)
_SIZES_GROW = Rule(
    "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
    "sizes only grow: a volume cannot be made smaller",
    ".size",
)
_VOLUMES_GROW = Rule(
    "self.volumes >= oldSelf.volumes", "volumes only grow: a folder of a bookie cannot be removed", ".volumes"
)
_DIRECTORIES_STAY = Rule(
    "self.dirsPerVolume == oldSelf.dirsPerVolume",
    "dirsPerVolume cannot be changed: the order of a bookie's folders is part of its data",
    ".dirsPerVolume",
)
_NOT_EMPTY = Rule("quantity(self.size).isGreaterThan(quantity('0'))", "a volume needs a size above 0", ".size")


class Volumes(ApiModel):
    """The volumes of one kind of each bookie."""

    RULES = (_NOT_EMPTY, _SIZES_GROW, _VOLUMES_GROW, _DIRECTORIES_STAY, _IMMUTABLE_CLASS)

    volumes: Annotated[int, Field(ge=1, le=16)] = Field(1, description="Volumes of this kind per bookie.")
    size: Quantity = Field(description="Size of each volume. Can only grow, if the storage class allows expansion.")
    storage_class_name: Label | None = Field(
        None, min_length=1, description="Storage class, preferably of local SSDs. Default: the cluster's."
    )
    dirs_per_volume: Annotated[int, Field(ge=1, le=8)] = Field(
        1, description="Folders on each volume. More than one helps only on devices with several queues."
    )


class IndexVolume(ApiModel):
    """The volume of the index. There is one, because the index is one database."""

    RULES = (_NOT_EMPTY, _SIZES_GROW, _IMMUTABLE_CLASS)

    volumes: Annotated[int, Field(ge=1, le=1)] = Field(1, description="Always 1: the index is one database.")
    size: Quantity = Field(description="Size of the volume. Can only grow.")
    storage_class_name: Label | None = Field(None, min_length=1, description="Storage class. Default: the cluster's.")
    dirs_per_volume: Annotated[int, Field(ge=1, le=1)] = Field(1, description="Always 1.")


class ReclaimPolicy(StrEnum):
    """What happens to the volumes of a removed bookie."""

    RETAIN = "Retain"
    DELETE = "Delete"


class LostVolumePolicy(StrEnum):
    """What happens to a bookie whose volumes are permanently lost."""

    AFTER_REPLICATION = "AfterReplication"
    MANUAL = "Manual"


class AutoExpand(ApiModel):
    """Expands ledger volumes before they are full, if the storage class allows expansion."""

    threshold: Annotated[int, Field(ge=10, le=95)] = Field(
        80, description="Used percentage of a bookie's ledger volumes at which they are expanded."
    )
    step: Quantity = Field(description="Size of each expansion.")
    max: Quantity = Field(description="Maximum size of a volume.")


class Storage(ApiModel):
    """Volumes of each bookie. A bookie id belongs to its volumes: empty volumes are always a new bookie."""

    RULES = (
        Rule(
            "has(self.index) == has(oldSelf.index)",
            "the index cannot be moved: its volume is chosen when the pool is created",
            ".index",
        ),
        Rule(
            "!has(self.autoExpand) || quantity(self.autoExpand.max).compareTo(quantity(self.ledgers.size)) >= 0",
            "autoExpand.max is below the size of the ledger volumes",
            ".autoExpand.max",
        ),
        Rule(
            "!has(self.autoExpand) || quantity(self.autoExpand.step).isGreaterThan(quantity('0'))",
            "autoExpand.step must be above 0",
            ".autoExpand.step",
        ),
    )

    journal: Volumes = Field(
        description="Journal: its sync latency determines the latency of an add. 10 GiB is enough."
    )
    ledgers: Volumes = Field(description="Entry logs: sized for the retained data.")
    index: IndexVolume | None = Field(None, description="Index. Default: in the first ledger folder.")
    reclaim_policy: ReclaimPolicy = Field(
        ReclaimPolicy.RETAIN,
        description="Retain keeps the volumes of a drained bookie and deletes its claims; of a deleted pool it keeps "
        "claims and volumes. Delete removes claims and volumes in both cases.",
    )
    lost_volume_policy: LostVolumePolicy = Field(
        LostVolumePolicy.AFTER_REPLICATION,
        description="For a bookie that lost its local volumes with its node. AfterReplication: once all of its ledgers "
        "have their replicas elsewhere, a new bookie on empty volumes replaces it. Manual: only if an administrator "
        "annotates its pod with quire.dev/replace.",
    )
    auto_expand: AutoExpand | None = Field(None, description="Expand ledger volumes automatically. Default: never.")


Watermark = Annotated[int, Field(ge=1, le=99)]
"""Used percentage of a disk."""


class Watermarks(ApiModel):
    """Disk usage limits of ledger folders, as percentages."""

    RULES = (
        Rule("self.low <= self.full", "watermarks: low must not be above full", ".low"),
        Rule("self.warn <= self.full", "watermarks: warn must not be above full", ".warn"),
    )

    warn: Watermark = Field(90, description="Above this, no major compaction runs.")
    full: Watermark = Field(95, description="Above this in all folders, the bookie is read-only.")
    low: Watermark = Field(90, description="Below this, a full folder is used again.")
