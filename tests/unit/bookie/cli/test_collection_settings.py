"""Keys of garbage collection and compaction reach the settings of the bookie."""

import pytest
from pydantic import ValidationError

from quire_bookie.cli.bookie_settings import storage_settings
from quire_bookie.config.bookie import StorageConfig
from quire_bookie.settings.collection import FuseSettings, OverReplicatedSettings, QuarantineSettings
from quire_bookie.settings.compaction import CompactionSettings


def test_the_defaults_are_those_of_the_settings_classes() -> None:
    settings = storage_settings(StorageConfig.model_validate({}))
    assert settings.compaction == CompactionSettings()
    assert settings.garbage_collection.fuse == FuseSettings()
    assert settings.garbage_collection.over_replicated == OverReplicatedSettings()
    assert settings.garbage_collection.quarantine == QuarantineSettings(86_400.0, 3600.0)


def test_bookkeepers_keys_reach_the_settings_in_their_units() -> None:
    config = StorageConfig.model_validate(
        {
            "gcFuseShare": 0.25,
            "gcFuseMinLedgers": 7,
            "gcQuarantineSeconds": 7200,
            "gcQuarantineMinSeconds": "60",
            "gcOverreplicatedLedgerWaitTime": 5000,
            "gcOverreplicatedLedgerMaxConcurrentRequests": 3,
            "minorCompactionThreshold": "0.1",
            "minorCompactionInterval": 60,
            "minorCompactionMaxTimeMillis": 1500,
            "majorCompactionThreshold": 0.5,
            "majorCompactionInterval": 600,
            "majorCompactionMaxTimeMillis": 2500,
            "isThrottleByBytes": "false",
            "compactionRateByBytes": 1_000_000,
            "compactionRateByEntries": 1234,
            "compactionLatencyMaxMillis": 50,
            "isForceGCAllowWhenNoSpace": False,
        }
    )
    settings = storage_settings(config)
    assert settings.compaction == CompactionSettings(
        minor_threshold=0.1,
        minor_interval_s=60.0,
        minor_time_max_s=1.5,
        major_threshold=0.5,
        major_interval_s=600.0,
        major_time_max_s=2.5,
        throttle_by_bytes=False,
        rate_bytes_s=1_000_000,
        rate_entries_s=1234,
        latency_max_s=0.05,
        force_when_no_space=False,
    )
    assert settings.garbage_collection.fuse == FuseSettings(0.25, 7)
    assert settings.garbage_collection.quarantine == QuarantineSettings(7200.0, 60.0)
    assert settings.garbage_collection.over_replicated == OverReplicatedSettings(5.0, 3)


def test_negative_values_mean_off_as_in_bookkeeper() -> None:
    settings = storage_settings(
        StorageConfig.model_validate({"minorCompactionInterval": -1, "majorCompactionThreshold": -1.0})
    )
    assert (settings.compaction.minor_interval_s, settings.compaction.major_threshold) == (0.0, 0.0)


def test_values_that_contradict_each_other_are_refused_by_their_keys() -> None:
    with pytest.raises(ValidationError, match="minorCompactionThreshold"):
        StorageConfig.model_validate({"minorCompactionThreshold": 0.9})
