"""Reads the settings of auto-recovery in a separate process, in a bookie's process, or in standalone."""

from typing import ClassVar

from quire_bookie.config.sources import ProcessConfig
from quire_bookie.settings.recovery import RecoverySettings


class AutoRecoveryConfig(ProcessConfig):
    """Settings of the auditor and the replication workers."""

    SETTINGS: ClassVar[tuple[type, ...]] = (RecoverySettings,)
