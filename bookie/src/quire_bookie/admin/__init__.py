"""The HTTP side of a bookie: health, readiness, metrics, and BookKeeper's admin paths.

Imports nothing itself: a broker takes its port by `listening` without a bookie's insides, and modules with aiohttp in
them are imported by whoever serves, when it serves.
"""
