"""The bookie process: connections, request handling, registration, garbage collection."""

from quire_bookie.server.process import BookieState, RunningBookie, start_bookie
from quire_bookie.server.settings import BookieSettings, BookieStats
from quire_bookie.settings.service import ServiceSettings

__all__ = ["BookieSettings", "BookieState", "BookieStats", "RunningBookie", "ServiceSettings", "start_bookie"]
