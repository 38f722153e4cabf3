"""Bookies whose disk is slow: how they are found and what is done about them. Models only."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from quire_operator.api.fields import ApiModel, Duration, Label, Rule, Timestamp, Whole

WINDOWS_MAX = 120


class SlowBookieAction(StrEnum):
    """The reaction to a bookie with a slow disk."""

    REPORT = "Report"
    REPLACE = "Replace"


class SlowBookies(ApiModel):
    """Finds bookies whose journal's disk is slow compared with the other bookies of the pool."""

    RULES = (
        Rule("duration(self.floor) >= duration('1ms')", "slowBookies: floor must be 1ms or more", ".floor"),
        Rule(
            "duration(self.replaceInterval) >= duration('10m')",
            "slowBookies: replaceInterval must be 10m or more",
            ".replaceInterval",
        ),
    )

    action: SlowBookieAction = Field(
        SlowBookieAction.REPORT,
        description="Report: condition SlowBookie and an event. Replace: also, one bookie at a time and only while "
        "everything is fully replicated, copy its ledgers elsewhere and replace it with a new bookie on new volumes.",
    )
    factor: Annotated[int, Field(ge=2, le=1000)] = Field(
        5,
        description="A bookie is slow in a minute if the 99th percentile of its journal writes is at least this many "
        "times the median of the other bookies. It is well again below half of that.",
    )
    floor: Duration = Field("20ms", description="A bookie whose 99th percentile is lower is never slow.")
    windows: Annotated[int, Field(ge=1, le=WINDOWS_MAX)] = Field(
        10, description="Slow minutes, less the good ones, after which a bookie is reported, and good ones to clear it."
    )
    min_adds: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        100, description="Adds in a minute below which a bookie is not judged, and is no peer of others."
    )
    replace_interval: Duration = Field("24h", description="Minimum time between two replacements in the pool.")


class SlowBookie(ApiModel):
    """A bookie that was slow in recent minutes, with the figures of the last minute that changed the count."""

    id: Label = Field(description="The bookie's id.")
    pod: Label = Field(description="Its pod.")
    since: Timestamp = Field(description="When it was first found slow.")
    slow: bool = Field(default=False, description="It was slow in enough minutes. False: it is only suspected.")
    windows: Whole = Field(description="Slow minutes, less the good ones since.")
    measured_at: Timestamp = Field(description="The end of the last counted minute.")
    journal_micros: Whole = Field(description="99th percentile of its journal writes, in microseconds.")
    peers_journal_micros: Whole = Field(description="Median of this over the other bookies.")
    add_micros: Whole | None = Field(default=None, description="99th percentile of its adds. Absent without adds.")
    peers_add_micros: Whole | None = Field(default=None, description="Median of this over the other bookies.")
    peers: Whole = Field(description="Number of bookies that it is compared with.")
