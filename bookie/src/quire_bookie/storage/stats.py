"""Counts what the storage does, for the metrics."""

from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.metrics import LatencyHistogram


@dataclass(slots=True)
class StorageStats:
    """Counters since the start, for the metrics collector."""

    entries_put: int = 0
    bytes_put: int = 0
    puts_rejected: int = 0
    reads: int = 0
    write_cache_hits: int = 0
    read_cache_hits: int = 0
    log_reads: int = 0
    log_bytes_read: int = 0
    reads_joined: int = 0
    reads_damaged: int = 0
    flushes: int = 0
    flush_seconds: LatencyHistogram = field(default_factory=LatencyHistogram)
    flushes_failed: int = 0
    entries_flushed: int = 0
    bytes_flushed: int = 0
    index_blocks_written: int = 0
    logs_sealed: int = 0
    logs_dropped: int = 0
    logs_damaged: int = 0
    ledgers_deleted: int = 0
    tombstones_expired: int = 0
