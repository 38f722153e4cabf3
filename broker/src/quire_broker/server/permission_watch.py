"""Checks open producers and consumers periodically and closes those whose role is no longer permitted.

Their clients reconnect and get the reason of the refusal. Messages that a producer sent before are answered first. If
permissions cannot be read, nothing is closed: the last known permissions apply during an outage.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from quire_bookie.errors import MetadataUnavailableError, MetadataUnknownError, QuireError
from quire_broker.errors import AuthorizationError

PAUSE_AFTER = 100  # this many checks take about a millisecond: then other tasks get the loop
log = logging.getLogger("quire.broker.security")


class Opened(Protocol):
    """A producer or consumer of a client."""

    async def require(self) -> None:
        """Raise AuthorizationError if it is not permitted; errors of the metadata store mean unknown."""
        ...

    async def revoke(self) -> None:
        """Close it, unless it is already closed."""
        ...


class PermissionWatch:
    """Checks the producers and consumers of one broker. `opened` lists the open ones."""

    def __init__(self, opened: Callable[[], Collection[Opened]], interval_s: float) -> None:
        self._opened = opened
        self._interval_s = interval_s

    async def run(self) -> None:
        """Run a round after each interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Check all of them once. Those that cannot be checked now are checked in the next round."""
        for number, one in enumerate(self._opened(), 1):
            try:
                await self._check(one)
            except (MetadataUnavailableError, MetadataUnknownError) as error:
                log.info("permissions are checked later: %s", error)
                return
            except QuireError as error:  # concerns only this one, such as unreadable policies: check the others
                log.warning("a permission is checked later: %s", error)
            except Exception:  # a defect must not keep revoked roles of others connected
                log.exception("a permission could not be checked; it is tried again in %g s", self._interval_s)
            if number % PAUSE_AFTER == 0:
                await asyncio.sleep(0)

    @staticmethod
    async def _check(one: Opened) -> None:
        try:
            await one.require()
        except AuthorizationError as error:
            log.warning("a permission was revoked: %s", error)
            await one.revoke()
