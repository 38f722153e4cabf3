"""Scaling the number of bookies: targets, windows, and the recommendation in the status. Models only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from quire_operator.api.fields import ApiModel, Duration, Message, Quantity, Rule, Timestamp, Whole, keyed

REPLICAS_MAX = 250


class LoadTargets(ApiModel):
    """The load of each bookie that the number of bookies aims at, averaged over the pool and about a minute."""

    RULES = (
        Rule(
            "has(self.adds) || has(self.bytes) || has(self.cpuMillicores)",
            "autoscale: load needs at least one of adds, bytes and cpuMillicores",
        ),
        Rule(
            "!has(self.bytes) || quantity(self.bytes).isGreaterThan(quantity('0'))",
            "autoscale: load.bytes must be above 0",
            ".bytes",
        ),
    )

    adds: Annotated[int, Field(ge=1)] | None = Field(None, description="Entries added per second.")
    bytes: Quantity | None = Field(None, description="Bytes of entries added and read per second: the network.")
    cpu_millicores: Annotated[int, Field(ge=1)] | None = Field(
        None, description="CPU time, in thousandths of a core. Below the limit of the pod."
    )


class Autoscale(ApiModel):
    """Adds bookies as the pool fills or gets busy, and drains some as it empties."""

    RULES = (
        Rule("self.min <= self.max", "autoscale: min must not be above max", ".min"),
        Rule(
            "self.lowWatermark < self.highWatermark",
            "autoscale: lowWatermark must be below highWatermark",
            ".lowWatermark",
        ),
    )

    min: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = Field(description="Minimum number of bookies.")
    max: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = Field(description="Maximum number of bookies.")
    high_watermark: Annotated[int, Field(ge=1, le=99)] = Field(
        80, description="Used percentage of the pool's space at which a bookie is added."
    )
    low_watermark: Annotated[int, Field(ge=0, le=98)] = Field(
        30, description="A bookie is removed if the used percentage would still be below this without it."
    )
    load: LoadTargets | None = Field(None, description="Also scale by load. Default: by space only.")
    scale_up_window: Duration = Field(
        "3m", description="How long the load must be above its target before a bookie is added."
    )
    scale_down_window: Duration = Field(
        "30m", description="With `load`: how long fewer bookies must be enough before one is drained."
    )


class Measure(StrEnum):
    """A figure that the number of bookies depends on."""

    SPACE = "space"
    ADDS = "adds"
    BYTES = "bytes"
    CPU = "cpu"


class AutoscaleFigure(ApiModel):
    """A figure of the pool, its target, and the number of bookies that it asks for."""

    name: Measure = Field(description="space in percent, adds and bytes per second, cpu in thousandths of a core.")
    current: Whole | None = Field(default=None, description="Of each bookie on average. Absent if it is not known.")
    target: Whole = Field(description="The target; of space the highWatermark.")
    desired: Whole | None = Field(default=None, description="Bookies that this figure asks for. Absent if not known.")


class AutoscaleStatus(ApiModel):
    """What the operator recommends, and why. Measured once a minute."""

    desired: Whole = Field(description="Recommended number of bookies, within min and max. It is reached one by one.")
    message: Message = Field(default="", description="The reason.")
    figures: tuple[AutoscaleFigure, ...] = keyed("name", 8, "The figures that were compared.")
    replicas: Whole = Field(description="Number of bookies at that time.")
    more_since: Timestamp | None = Field(default=None, description="Since when more bookies have been recommended.")
    fewer_since: Timestamp | None = Field(default=None, description="Since when fewer have been recommended.")
    measured_at: Timestamp = Field(description="When the figures were compared.")
