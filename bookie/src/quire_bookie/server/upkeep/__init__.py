"""Background work of a bookie: garbage collection, compaction, scrubbing, disks and read-only mode."""
