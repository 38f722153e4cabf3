"""Defines the setting of slow operations. BookKeeper and Pulsar have no such key."""

from typing import ClassVar

from quire_bookie.config.sources import ProcessConfig
from quire_bookie.settings.slow import SlowSettings


class SlowOperationsConfig(ProcessConfig):
    """Says from which duration on an operation of the process is logged."""

    SETTINGS: ClassVar[tuple[type, ...]] = (SlowSettings,)
