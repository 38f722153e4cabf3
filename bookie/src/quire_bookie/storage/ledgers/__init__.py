"""The state of each ledger on this bookie: fences, limbo, tombstones, id marks."""
