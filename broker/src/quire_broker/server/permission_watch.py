"""Rounds over the open producers and consumers: those whose role may no longer do this are closed.

Their clients connect anew and are told why they may not. What a producer has sent before is answered first. Where
permissions cannot be read nothing is closed: what was true before an outage serves until it ends.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Protocol

from quire_bookie.errors import MetadataUnavailableError, MetadataUnknownError, QuireError
from quire_broker.errors import AuthorizationError

PAUSE_AFTER = 100  # looks in a row take about a millisecond: then others get the loop
log = logging.getLogger("quire.broker.security")


class Opened(Protocol):
    """A producer or consumer of some client."""

    async def require(self) -> None:
        """AuthorizationError when it may not be; errors of the metadata store: not known."""
        ...

    async def revoke(self) -> None:
        """Close it, unless that is done already."""
        ...


class PermissionWatch:
    """Of one broker. `opened` lists what is open now."""

    def __init__(self, opened: Callable[[], Collection[Opened]], interval_s: float) -> None:
        self._opened = opened
        self._interval_s = interval_s

    async def run(self) -> None:
        """A round after each interval, until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.round()

    async def round(self) -> None:
        """Everything once. What cannot be looked at now is looked at in the next round."""
        for number, one in enumerate(self._opened(), 1):
            try:
                await self._look_at(one)
            except (MetadataUnavailableError, MetadataUnknownError) as error:
                log.info("permissions are looked at later: %s", error)
                return
            except QuireError as error:  # of this one, as policies that cannot be read: the others are looked at
                log.warning("a permission is looked at later: %s", error)
            except Exception:  # a defect must not leave revoked roles of others connected
                log.exception("a permission could not be looked at; it is tried again in %g s", self._interval_s)
            if number % PAUSE_AFTER == 0:
                await asyncio.sleep(0)

    @staticmethod
    async def _look_at(one: Opened) -> None:
        try:
            await one.require()
        except AuthorizationError as error:
            log.warning("a permission was revoked: %s", error)
            await one.revoke()
