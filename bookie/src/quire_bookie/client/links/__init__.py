"""Connections to bookies: pools, protocol v2 and v3, single requests."""
