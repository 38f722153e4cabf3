"""Decisions of load balancing as pure functions of a snapshot. Pure: knows no clock, store or event loop."""
