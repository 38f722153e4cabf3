"""The states of ledgers on this bookie: fences, limbo, tombstones, id marks."""
