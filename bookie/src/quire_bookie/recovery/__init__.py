"""Auto-recovery: detects lost and incomplete replicas and creates new ones. A client of bookies and metadata only."""

from quire_bookie.recovery.process import RunningAutoRecovery, start_auto_recovery
from quire_bookie.settings.recovery import RecoverySettings

__all__ = ["RecoverySettings", "RunningAutoRecovery", "start_auto_recovery"]
