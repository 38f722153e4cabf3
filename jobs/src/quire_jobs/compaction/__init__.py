"""Compaction of large topics with Spark: the keys are spread over tasks, and the topic's broker records the result."""
