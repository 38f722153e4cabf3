"""A faulty network between one server and its clients: it cuts, holds, delays or tears the traffic.

Runs on the test's own loop, or as `RelayThread` on one of its own. Directions are seen from the client: TO the server,
BACK from it. A one-way partition holds one of them: nothing is lost and nothing arrives, as with packets that are
retransmitted until the network is back.
"""

import asyncio
import contextlib
import threading
from collections.abc import Collection
from enum import Enum


class Way(Enum):
    """A direction."""

    TO = "to the server"
    BACK = "back to the client"


BOTH = frozenset(Way)


class Relay:
    """Listens on a free port from `open` on and forwards to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._passes = {way: asyncio.Event() for way in Way}
        self._delay_s = dict.fromkeys(Way, 0.0)
        self._torn: set[Way] = set()
        self._cuts = 0

    async def open(self) -> None:
        """Start forwarding, on the same port every time."""
        await self.heal()

    async def heal(self) -> None:
        """End all faults. Cut connections stay cut."""
        for event in self._passes.values():
            event.set()
        self._delay_s = dict.fromkeys(Way, 0.0)
        self._torn.clear()
        if self._server is None:
            self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
            self.port = int(self._server.sockets[0].getsockname()[1])

    def hold(self, ways: Collection[Way] = BOTH) -> None:
        """Hold the traffic in these directions until `heal`; connections stay and new ones are accepted."""
        for way in ways:
            self._passes[way].clear()

    def delay(self, delay_s: float, ways: Collection[Way] = BOTH) -> None:
        """Delay the traffic in these directions, in order."""
        for way in ways:
            self._delay_s[way] = delay_s

    def tear(self, ways: Collection[Way] = BOTH) -> None:
        """Pass half of the next bytes in these directions, then cut the connection; once for each direction."""
        self._torn |= set(ways)

    async def cut(self, *, refuse: bool = False) -> None:
        """Cut every connection; with `refuse`, accept no new one until `heal`."""
        self._cuts += 1
        if refuse and self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Stop the relay."""
        await self.cut(refuse=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        cuts = self._cuts
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.transport.abort()
            return
        if self._cuts != cuts or self._server is None:
            # Cut before it was complete: `cut` did not see it.
            writer.transport.abort()
            back.transport.abort()
            return
        pair = {writer, back}
        self._writers |= pair
        for source, target, way in ((reader, back, Way.TO), (there, writer, Way.BACK)):
            task = asyncio.ensure_future(self._forward(source, target, way, pair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, way: Way, pair: set[asyncio.StreamWriter]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if self._delay_s[way]:
                    await asyncio.sleep(self._delay_s[way])
                await self._passes[way].wait()
                if way in self._torn:
                    self._torn.discard(way)
                    target.write(data[: len(data) // 2])
                    await target.drain()
                    break
                target.write(data)
                await target.drain()
        self._writers -= pair
        for writer in pair:
            # Closed without a reset, so that forwarded bytes still arrive.
            writer.close()


class RelayThread:
    """A relay with a thread of its own, for tests that block."""

    def __init__(self, target_port: int) -> None:
        self._relay = Relay(target_port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.heal()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._relay.port

    def heal(self) -> None:
        """End all faults."""
        asyncio.run_coroutine_threadsafe(self._relay.heal(), self._loop).result()

    def hold(self, ways: Collection[Way] = BOTH) -> None:
        """Hold the traffic in these directions until `heal`."""

        async def held() -> None:
            self._relay.hold(ways)

        asyncio.run_coroutine_threadsafe(held(), self._loop).result()

    def close(self) -> None:
        """Cut every connection and end the thread."""
        asyncio.run_coroutine_threadsafe(self._relay.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
