"""Checks whether other brokers still accept connections, so that lookups do not send clients to a dead one.

A broker whose machine is gone stays the owner of its bundles until its lease ends. Clients would try its address in
vain, and their pauses between attempts grow.
"""

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from quire_broker.limits import REACHABLE_CHECK_S, REACHABLE_S, UNREACHABLE_CHECK_S
from quire_broker.ownership.owners import BrokerUrls

Connect = Callable[[str, int], Awaitable[None]]


async def connect_once(host: str, port: int) -> None:
    """Connect to a port and close the connection. OSError, TimeoutError."""
    async with asyncio.timeout(REACHABLE_CHECK_S):
        _, writer = await asyncio.open_connection(host, port)
    writer.close()


class Reachability:
    """Remembers for a short time which brokers accept connections. One check of a broker runs at a time.

    No lookup waits for a broker that is trusted, also if it never accepts a connection from here.
    """

    def __init__(self, connect: Connect = connect_once) -> None:
        self._connect = connect
        self._checks: dict[str, asyncio.Task[bool]] = {}
        self._known_until: dict[str, float] = {}
        self._trusted: dict[str, float] = {}
        """Time of the last check of each broker that is trusted."""

    async def is_reachable(self, urls: BrokerUrls) -> bool:
        """Return whether the broker accepts connections, or did a moment ago, or is trusted."""
        url = urls.clients
        now = asyncio.get_running_loop().time()
        if now < self._known_until.get(url, 0.0):
            return True
        if url in self._trusted:
            if now - self._trusted[url] >= UNREACHABLE_CHECK_S:
                self._trusted[url] = now
                self._checking(url)
            return True
        return await asyncio.shield(self._checking(url))

    def trust(self, urls: BrokerUrls) -> None:
        """Count a broker as reachable until it is: it holds its lease although this broker cannot connect to it."""
        self._trusted[urls.clients] = asyncio.get_running_loop().time()

    def _checking(self, url: str) -> "asyncio.Task[bool]":
        check = self._checks.get(url)
        if check is None:
            check = self._checks[url] = asyncio.create_task(self._check(url))
            check.add_done_callback(lambda _: self._checks.pop(url, None))
        return check

    async def _check(self, url: str) -> bool:
        parts = urlsplit(url)
        try:
            await self._connect(parts.hostname or "", parts.port or 0)
        except (OSError, TimeoutError):
            self._known_until.pop(url, None)
            return False
        self._trusted.pop(url, None)
        self._known_until[url] = asyncio.get_running_loop().time() + REACHABLE_S
        return True
