"""The HTTP side of a bookie: health, readiness, metrics."""

from quire_bookie.admin.readings import bookie_readings
from quire_bookie.admin.web import BookieWeb

__all__ = ["BookieWeb", "bookie_readings"]
