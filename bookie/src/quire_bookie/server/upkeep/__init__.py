"""Background tasks of a bookie: garbage collection, compaction, scrubbing, disk checks, read-only mode."""
