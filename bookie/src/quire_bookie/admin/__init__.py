"""The HTTP side of a bookie: health, readiness, metrics."""

from quire_bookie.admin.readings import BookieReadings
from quire_bookie.admin.web import BookieWeb

__all__ = ["BookieReadings", "BookieWeb"]
