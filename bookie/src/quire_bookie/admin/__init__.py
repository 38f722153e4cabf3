"""The HTTP side of a bookie: health, readiness, metrics, and BookKeeper's admin paths.

Modules with aiohttp in them are imported by whoever serves, when it serves: see `listening`.
"""

from quire_bookie.admin.readings import BookieReadings

__all__ = ["BookieReadings"]
