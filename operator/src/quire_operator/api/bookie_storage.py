"""Volumes of a bookie: what it is given, what happens to it afterwards, and which changes are refused. Shapes only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from quire_operator.api.fields import ApiModel, Label, Quantity, Rule

_IMMUTABLE_CLASS = Rule(
    "has(self.storageClassName) == has(oldSelf.storageClassName) && "
    "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
    "storageClassName cannot be changed: make another Bookie pool with the new class and drain this one",
    ".storageClassName",
)
_SIZES_GROW = Rule(
    "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
    "sizes only grow: a volume cannot be made smaller",
    ".size",
)
_VOLUMES_GROW = Rule(
    "self.volumes >= oldSelf.volumes", "volumes only grow: a bookie cannot give up a folder", ".volumes"
)
_DIRECTORIES_STAY = Rule(
    "self.dirsPerVolume == oldSelf.dirsPerVolume",
    "dirsPerVolume cannot be changed: the order of a bookie's folders is part of its data",
    ".dirsPerVolume",
)
_NOT_EMPTY = Rule("quantity(self.size).isGreaterThan(quantity('0'))", "a volume needs a size above 0", ".size")


class Volumes(ApiModel):
    """Volumes of one kind, of each bookie."""

    RULES = (_NOT_EMPTY, _SIZES_GROW, _VOLUMES_GROW, _DIRECTORIES_STAY, _IMMUTABLE_CLASS)

    volumes: Annotated[int, Field(ge=1, le=16)] = Field(1, description="How many volumes of this kind a bookie has.")
    size: Quantity = Field(description="Size of each volume; only grows, where the storage class allows expansion.")
    storage_class_name: Label | None = Field(
        None, min_length=1, description="Storage class; local SSD is what it is made for. Default: the cluster's."
    )
    dirs_per_volume: Annotated[int, Field(ge=1, le=8)] = Field(
        1, description="Folders on each volume. More than one helps a device only where it has several queues."
    )


class IndexVolume(ApiModel):
    """The volume of the index: one, since the index is one database."""

    RULES = (_NOT_EMPTY, _SIZES_GROW, _IMMUTABLE_CLASS)

    volumes: Annotated[int, Field(ge=1, le=1)] = Field(1, description="Always 1: the index is one database.")
    size: Quantity = Field(description="Size of the volume; only grows.")
    storage_class_name: Label | None = Field(None, min_length=1, description="Storage class. Default: the cluster's.")
    dirs_per_volume: Annotated[int, Field(ge=1, le=1)] = Field(1, description="Always 1.")


class ReclaimPolicy(StrEnum):
    """What becomes of the volumes of a bookie that is gone for good."""

    RETAIN = "Retain"
    DELETE = "Delete"


class LostVolumePolicy(StrEnum):
    """What becomes of a bookie whose volumes cannot come back."""

    AFTER_REPLICATION = "AfterReplication"
    MANUAL = "Manual"


class AutoExpand(ApiModel):
    """Larger ledger volumes before they are full, where the storage class allows expansion."""

    threshold: Annotated[int, Field(ge=10, le=95)] = Field(
        80, description="Per cent: a ledger volume fuller than this makes the ledger volumes of its bookie grow."
    )
    step: Quantity = Field(description="By so much at a time.")
    max: Quantity = Field(description="Never above this size.")


class Storage(ApiModel):
    """Volumes of each bookie. An id belongs to its volumes: empty ones are always a new bookie."""

    RULES = (
        Rule(
            "has(self.index) == has(oldSelf.index)",
            "the index cannot be moved: a volume for it is chosen when the pool is made",
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
        description="Write-ahead log: its sync latency is the latency of an add. 10 GiB is plenty."
    )
    ledgers: Volumes = Field(description="Entry logs: as much as is kept.")
    index: IndexVolume | None = Field(None, description="Block index. Default: in the first ledger folder.")
    reclaim_policy: ReclaimPolicy = Field(
        ReclaimPolicy.RETAIN,
        description="Retain keeps the volumes of a drained bookie, released: its claims go. Of a deleted pool it keeps "
        "claims and volumes. Delete removes all of them.",
    )
    lost_volume_policy: LostVolumePolicy = Field(
        LostVolumePolicy.AFTER_REPLICATION,
        description="A bookie whose node is gone with its local volumes. AfterReplication: once everything on it has "
        "its replicas elsewhere, it is replaced by a new bookie on empty volumes. Manual: only when a person annotates "
        "its pod with quire.dev/replace.",
    )
    auto_expand: AutoExpand | None = Field(None, description="Let ledger volumes grow by themselves. Default: never.")


Watermark = Annotated[int, Field(ge=1, le=99)]
"""Per cent of a disk."""


class Watermarks(ApiModel):
    """How full a ledger folder may be, in per cent."""

    RULES = (
        Rule("self.low <= self.full", "watermarks: low must not be above full", ".low"),
        Rule("self.warn <= self.full", "watermarks: warn must not be above full", ".warn"),
    )

    warn: Watermark = Field(90, description="Above: no major compaction.")
    full: Watermark = Field(95, description="Above in all folders: read-only.")
    low: Watermark = Field(90, description="Below: taken back.")
