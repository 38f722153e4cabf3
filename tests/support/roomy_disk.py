"""What a test's bookie is told so that it never judges how full the disk of the machine that tests is."""

NEVER_FULL = 1.0
"""As `disk_usage_threshold`: no disk is above it."""
