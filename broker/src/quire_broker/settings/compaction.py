"""Declares the settings of the compaction of topics."""

from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import MEBIBYTES, setting
from quire_broker import limits


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """When topics are compacted, and which messages are kept."""

    threshold_bytes: int = setting(
        0,
        "brokerServiceCompactionThresholdInBytes",
        "a topic is compacted when more bytes than this were added since the last time; 0: only on request",
        short="topic_compaction_threshold_bytes",
        ge=0,
    )
    check_interval_s: float = setting(
        limits.COMPACTION_CHECK_S,
        "brokerServiceCompactionMonitorIntervalInSeconds",
        "pause between two checks of the compaction thresholds, in s",
        short="topic_compaction_check_interval_s",
        kind=int,
        ge=1,
    )
    retain_null_key: bool = setting(
        False,
        "topicCompactionRetainNullKey",
        "compaction keeps messages without a key; false: it drops them",
        short="topic_compaction_retain_null_key",
    )
    keys_bytes_max: int = setting(
        limits.COMPACTION_KEYS_BYTES_MAX,
        "topicCompactionKeysMaxMb",
        f"memory for the keys of one compaction, MiB; a topic with more keys is not compacted; up to "
        f"{limits.COMPACTIONS_AT_ONCE} topics of a broker are compacted at once",
        short="topic_compaction_keys_max_mb",
        unit=MEBIBYTES,
        ge=1,
    )
