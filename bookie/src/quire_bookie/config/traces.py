"""Defines the settings of traces. BookKeeper and Pulsar have no such keys."""

from typing import ClassVar

from quire_bookie.config.sources import ProcessConfig
from quire_bookie.settings.traces import TraceSettings


class TracesConfig(ProcessConfig):
    """Says which operations of the process are traced, and where their spans go."""

    SETTINGS: ClassVar[tuple[type, ...]] = (TraceSettings,)
