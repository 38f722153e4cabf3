"""Tables of the metric names of a bookie: BookKeeper's if it has one, otherwise `quire_*`."""

from quire_bookie.exposition.families import Names

SERVER: Names = {
    "add_entries": ("bookkeeper_server_ADD_ENTRY_count", "counter", "entries added"),
    "add_bytes": ("bookie_WRITE_BYTES", "counter", "bytes of entries added"),
    "adds_failed": ("quire_bookie_adds_failed", "counter", "adds answered with an error"),
    "adds_foreign": ("quire_bookie_adds_foreign", "counter", "adds of a ledger whose id is another ledger's here"),
    "tokens_refused": ("quire_bookie_tokens_refused", "counter", "clients whose ledger differs from the one here"),
    "adds_rejected": ("bookkeeper_server_ADD_ENTRY_REJECTED", "counter", "adds answered with ETOOMANYREQUESTS"),
    "adds_paused": ("bookkeeper_server_ADD_ENTRY_BLOCKED", "counter", "times that a socket was paused"),
    "adds_in_flight_bytes": ("quire_bookie_adds_in_flight_bytes", "gauge", "bytes of adds not yet answered"),
    "reads": ("bookkeeper_server_READ_ENTRY_count", "counter", "entries read"),
    "reads_failed": ("quire_bookie_reads_failed", "counter", "reads answered with an error"),
    "read_bytes": ("bookie_READ_BYTES", "counter", "bytes of entries read"),
    "batch_reads": ("bookkeeper_server_BATCH_READ_ENTRY_count", "counter", "batch reads"),
    "recovery_add_entries": ("bookie_BOOKIE_RECOVERY_ADD_ENTRY_count", "counter", "entries added by recoveries"),
    "deferred_add_entries": ("quire_bookie_deferred_add_entries", "counter", "entries answered before the sync"),
    "fences": ("quire_bookie_fences", "counter", "ledgers fenced"),
    "fences_failed": ("quire_bookie_fences_failed", "counter", "fencing reads answered with an error"),
    "long_polls": ("quire_bookie_long_polls", "counter", "reads that may wait for the LAC"),
    "long_polls_failed": ("quire_bookie_long_polls_failed", "counter", "long polls answered with an error"),
    "long_polls_parked": ("quire_bookie_long_polls_parked", "gauge", "long polls that are waiting"),
    "forces": ("quire_bookie_forces", "counter", "forced syncs requested"),
    "forces_failed": ("quire_bookie_forces_failed", "counter", "forced syncs answered with an error"),
    "lac_writes": ("bookkeeper_server_WRITE_LAC_count", "counter", "explicit LACs sent to this bookie"),
    "lac_writes_failed": ("quire_bookie_lac_writes_failed", "counter", "explicit LACs answered with an error"),
    "lac_reads": ("bookkeeper_server_READ_LAC_count", "counter", "reads of the LAC"),
    "lac_reads_failed": ("quire_bookie_lac_reads_failed", "counter", "reads of the LAC answered with an error"),
    "entry_lists": ("bookkeeper_server_GET_LIST_OF_ENTRIES_OF_LEDGER_count", "counter", "lists of entries requested"),
    "entry_lists_failed": ("quire_bookie_entry_lists_failed", "counter", "lists of entries answered with an error"),
    "info_requests": ("bookkeeper_server_GET_BOOKIE_INFO_count", "counter", "requests for the free space"),
    "requests_refused": ("quire_bookie_requests_refused", "counter", "requests refused by the protocol"),
    "ledgers_created": ("quire_bookie_ledgers_created", "counter", "ledgers first seen"),
    "ledgers_revived": (
        "quire_bookie_ledgers_revived",
        "counter",
        "ledgers deleted as superfluous copies and restored by a recovery add",
    ),
    "add_runs": ("quire_bookie_add_runs", "counter", "runs of consecutive entries added"),
    "connections_closed_unused": (
        "quire_bookie_connections_closed_unused",
        "counter",
        "connections closed because they sent no request",
    ),
    "connections_open": ("bookkeeper_server_ACTIVE_CONNECTIONS", "gauge", "open connections"),
    "connections_opened": ("quire_bookie_connections_opened", "counter", "connections opened"),
    "protocol_failures": ("quire_bookie_protocol_failures", "counter", "connections dropped for malformed bytes"),
}
JOURNAL: Names = {
    "entries": ("bookie_journal_JOURNAL_ADD_ENTRY_count", "counter", "entries made durable"),
    "groups": ("bookie_journal_JOURNAL_SYNC_count", "counter", "groups made durable"),
    "records": ("quire_journal_records", "counter", "records of all kinds made durable"),
    "written_bytes": ("bookie_journal_JOURNAL_WRITE_BYTES", "counter", "bytes written, padding included"),
    "write_seconds_max": ("quire_journal_write_seconds_max", "gauge", "the slowest group since the start"),
    "file_changes": ("bookie_journal_JOURNAL_CREATION_count", "counter", "journal files started"),
    "refused_full": ("quire_journal_refused_full", "counter", "appends refused because the disk is full"),
}
STORAGE: Names = {
    "entries_put": ("bookie_BOOKIE_ADD_ENTRY_count", "counter", "entries put into the write cache"),
    "bytes_put": ("bookie_BOOKIE_ADD_ENTRY_BYTES", "counter", "bytes put into the write cache"),
    "puts_rejected": ("bookie_rejected_write_requests", "counter", "puts refused with both cache halves full"),
    "reads": ("bookie_BOOKIE_READ_ENTRY_count", "counter", "reads"),
    "write_cache_hits": ("bookie_write_cache_hits", "counter", "reads answered by the write cache"),
    "read_cache_hits": ("bookie_read_cache_hits", "counter", "reads answered by the read cache"),
    "log_reads": ("bookie_read_cache_misses", "counter", "reads of an entry log"),
    "log_bytes_read": ("quire_storage_log_bytes_read", "counter", "bytes read of entry logs, read-ahead included"),
    "reads_joined": ("quire_storage_reads_joined", "counter", "reads that shared a disk read with another"),
    "reads_damaged": ("quire_storage_reads_damaged", "counter", "reads that found damage and returned EIO"),
    "flushes": ("quire_storage_flushes", "counter", "flushes of the write cache"),
    "flushes_failed": ("quire_storage_flushes_failed", "counter", "flushes that failed"),
    "entries_flushed": ("quire_storage_entries_flushed", "counter", "entries flushed"),
    "bytes_flushed": ("bookie_flush_size", "counter", "bytes flushed"),
    "index_blocks_written": ("quire_storage_index_blocks_written", "counter", "blocks of the index written"),
    "tombstones_expired": ("quire_storage_tombstones_expired", "counter", "records of deleted ledgers that expired"),
    "logs_sealed": ("quire_storage_logs_sealed", "counter", "entry logs sealed"),
    "logs_dropped": ("quire_storage_logs_dropped", "counter", "entry logs without a live ledger deleted"),
    "logs_damaged": ("quire_storage_logs_damaged", "counter", "entry logs found damaged"),
}
COLLECTION: Names = {
    "rounds": ("bookie_GC_ROUNDS", "counter", "rounds of garbage collection started"),
    "completed_rounds": ("quire_gc_completed_rounds", "counter", "rounds of garbage collection that succeeded"),
    "ledgers_held": ("bookie_ACTIVE_LEDGER_TOTAL", "gauge", "ledgers held, as of the last round"),
    "ledgers_quarantined": ("quire_gc_ledgers_quarantined", "counter", "ledgers that entered quarantine"),
    "ledgers_returned": (
        "quire_gc_ledgers_returned",
        "counter",
        "ledgers that left quarantine because the metadata named them again",
    ),
    "ledgers_deleted": ("bookie_DELETED_LEDGER_TOTAL", "counter", "ledgers deleted"),
    "copies_deleted": ("quire_gc_copies_deleted", "counter", "ledgers deleted because no ensemble names this bookie"),
    "freed_bytes": ("bookie_RECLAIMED_DELETION_SPACE_BYTES", "counter", "bytes freed by deletions"),
    "fuse_blown": ("quire_gc_fuse_blown", "gauge", "1: too many ledgers are missing at once, nothing is deleted"),
    "in_doubt": ("quire_gc_in_doubt", "gauge", "1: the last round did not trust the metadata, or could not read it"),
    "held_back": ("quire_gc_held_back", "gauge", "1: an operator's hold, nothing is deleted"),
}
COMPACTION: Names = {
    "logs_compacted": ("quire_compaction_logs", "counter", "entry logs emptied and removed"),
    "logs_incomplete": ("quire_compaction_logs_incomplete", "counter", "logs with entries that could not be moved"),
    "entries_moved": ("quire_compaction_entries_moved", "counter", "entries moved to another log"),
    "bytes_moved": ("quire_compaction_bytes_moved", "counter", "bytes moved to another log"),
    "records_damaged": ("quire_compaction_records_damaged", "counter", "damaged records found by compaction"),
    "reclaimed_bytes": ("bookie_RECLAIMED_COMPACTION_SPACE_BYTES", "counter", "bytes freed by compaction"),
}
COMPACTION_SCHEDULE: Names = {
    "minor_runs": ("bookie_MINOR_COMPACTION_TOTAL", "counter", "minor compactions"),
    "major_runs": ("bookie_MAJOR_COMPACTION_TOTAL", "counter", "major compactions"),
    "failed_runs": ("quire_compaction_failed_runs", "counter", "compactions that ended with an error"),
    "pauses": ("quire_compaction_pauses", "counter", "times that compaction waited for slow adds or reads"),
    "freed_bytes": ("quire_compaction_freed_bytes", "counter", "bytes freed by scheduled compactions"),
}
DAMAGE: Names = {
    "damages": ("quire_scrub_damages", "counter", "findings of damage by the scrub or by reads"),
    "by_reads": ("quire_damages_by_reads", "counter", "findings of damage first made by reads"),
    "repaired": ("quire_damages_repaired", "counter", "findings whose entries read intact again"),
}
SCRUBBING: Names = {
    "rounds": ("quire_scrub_rounds", "counter", "scrubs of all entry logs"),
    "logs": ("quire_scrub_logs", "counter", "entry logs scrubbed"),
    "bytes_read": ("quire_scrub_bytes_read", "counter", "bytes read by the scrub"),
    "entries": ("quire_scrub_entries", "counter", "entries whose record was checked"),
    "digests": ("quire_scrub_digests", "counter", "entries whose digest was checked too"),
    "keys_restored": ("quire_scrub_keys_restored", "counter", "lost master keys restored from the metadata"),
}
REGISTRATION: Names = {
    "registrations": ("quire_registration_registrations", "counter", "registrations in the metadata store"),
    "takeovers": ("quire_registration_takeovers", "counter", "registrations of a previous run replaced"),
    "sessions_lost": ("quire_registration_sessions_lost", "counter", "leases lost"),
}


LATENCIES: dict[str, tuple[str, str, str]] = {
    "add_seconds": ("bookkeeper_server_ADD_ENTRY_REQUEST", "quire_bookie_add_seconds", "adds, arrival to response"),
    "read_seconds": ("bookkeeper_server_READ_ENTRY_REQUEST", "quire_bookie_read_seconds", "reads, arrival to response"),
    "fence_seconds": (
        "bookkeeper_server_READ_ENTRY_FENCE_REQUEST",
        "quire_bookie_fence_seconds",
        "fencing reads, arrival to response",
    ),
    "long_poll_seconds": (
        "bookkeeper_server_READ_ENTRY_LONG_POLL_REQUEST",
        "quire_bookie_long_poll_seconds",
        "long polls, arrival to response",
    ),
    "force_seconds": ("bookkeeper_server_FORCE_LEDGER_REQUEST", "quire_bookie_force_seconds", "forced syncs"),
    "write_lac_seconds": ("bookkeeper_server_WRITE_LAC_REQUEST", "quire_bookie_write_lac_seconds", "explicit LACs"),
    "write_seconds": ("bookie_journal_JOURNAL_FLUSH_LATENCY", "quire_journal_write_seconds", "journal groups to disk"),
    "flush_seconds": ("bookie_flush", "quire_storage_flush_seconds", "flushes of the write cache"),
    "round_seconds": ("bookie_THREAD_RUNTIME", "quire_gc_round_seconds", "rounds of garbage collection"),
    "read_lac_seconds": ("bookkeeper_server_READ_LAC_REQUEST", "quire_bookie_read_lac_seconds", "reads of the LAC"),
}
"""Attribute of a Stats object: name of the summary, name of the histogram, help text."""
