"""Compaction of topics: a second copy of a topic's first entries that keeps the latest message of each key."""
