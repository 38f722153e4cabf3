"""Connections to bookies: the pool, protocols V2 and V3, single requests."""
