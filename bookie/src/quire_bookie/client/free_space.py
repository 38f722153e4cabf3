"""Polls the free space of each bookie for the weights of placement. Makes no decisions.

A bookie that does not respond keeps its last value; a bookie that is no longer registered is removed.
"""

import asyncio
import logging

from quire_bookie.client.links.single_requests import ask_space
from quire_bookie.client.security import ClientSecurity
from quire_bookie.env.background import start_background
from quire_bookie.errors import LedgerError
from quire_bookie.metadata.registration import BookieRegistry
from quire_bookie.model import BookieId

_log = logging.getLogger("quire.client.space")


class FreeSpace:
    """Holds the free bytes by bookie, refreshed every `interval_s` by one task."""

    def __init__(
        self, registry: BookieRegistry, interval_s: float, timeout_s: float, security: ClientSecurity | None
    ) -> None:
        self.weights: dict[BookieId, float] = {}
        self._registry = registry
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._security = security
        self._task = start_background(self._poll(), "free space of bookies", _log)

    async def close(self) -> None:
        """Stop polling."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            for bookie in sorted(self._registry.writable):
                address = self._registry.address_of(bookie)
                if address is None:
                    continue
                try:
                    self.weights[bookie] = (await ask_space(address, self._timeout_s, self._security)).free_bytes
                except LedgerError as error:
                    _log.warning("%s", error)
            for bookie in self.weights.keys() - self._registry.writable - self._registry.read_only:
                del self.weights[bookie]
            await asyncio.sleep(self._interval_s)
