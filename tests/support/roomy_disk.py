"""A setting for bookies in tests that ignores how full the machine's disk is."""

NEVER_FULL = 1.0
"""Value of `disk_usage_threshold` that no disk exceeds."""
