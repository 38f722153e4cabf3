"""A bookie on fakes with a connection, and the frames that tests send to it."""

import asyncio

from quire_bookie.model import NO_ENTRY, DigestType, EntryId, LedgerId
from quire_bookie.server.requests.traced_adds import TracedAdds
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.messages import Response, Status
from quire_bookie.wire.server_codec import ServerCodec
from tests.unit.bookie.server.fakes import FakeClock, FakeConnection, FakeJournal, FakeStorage, make_bookie

LEDGER = LedgerId(3)
KEY = bytes(range(20))
DIGEST = Digest(DigestType.DUMMY, b"")


class Scene:
    """Holds a bookie on fakes and one connection; tests may add more connections."""

    batches = True
    """Whether the codec batches plain adds, as it does for a socket."""

    def __init__(self, settings: ServiceSettings | None = None, traced: TracedAdds | None = None) -> None:
        self.journal = FakeJournal()
        self.storage = FakeStorage()
        self.clock = FakeClock()
        self.bookie = make_bookie(self.journal, self.storage, settings, self.clock, traced)
        self.connection = FakeConnection()
        self.journal.turn_over = self.bookie._end_turn

    async def handle(self, data: bytes, connection: FakeConnection | None = None) -> None:
        """Feed one buffer and let loading and reading end."""
        self.bookie.handle((connection or self.connection).real, ServerCodec(batches=self.batches).feed(data))
        await self.turn()

    async def turn(self) -> None:
        """Let the loop run until nothing is ready."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def stored(self, *frames: bytes) -> None:
        """Send adds, make them durable, drop the responses."""
        await self.handle(b"".join(frames))
        self.journal.settle()
        await self.turn()
        self.connection.sent.clear()

    def statuses(self, generation: int = 2) -> list[Status]:
        """Return the status of each response since the last call."""
        return [response.status for response in self.connection.responses(generation)]

    async def ask_v3(self, frame: bytes) -> list[Response]:
        """Send V3 frames; return the responses."""
        await self.handle(frame)
        return self.connection.responses(3)


def entry_bytes(entry: int, *, lac: int = -1, ledger: LedgerId = LEDGER, payload: bytes = b"x") -> bytes:
    """Return one complete entry."""
    return DIGEST.encode_entry(ledger, EntryId(entry), EntryId(lac), 0, ()) + payload


def adds(
    first: int,
    count: int = 1,
    *,
    recovery: bool = False,
    high_priority: bool = False,
    key: bytes = KEY,
    lac: int = NO_ENTRY,
    ledger: LedgerId = LEDGER,
    payload: bytes = b"x",
) -> bytes:
    """Return adds of V2 in one buffer."""
    entries = [(entry_bytes(each, lac=lac, ledger=ledger, payload=payload),) for each in range(first, first + count)]
    return b"".join(client_codec.v2_adds(key, entries, recovery=recovery, high_priority=high_priority))


def fencing_read(entry: int = NO_ENTRY) -> bytes:
    """Return a fencing read of V2; by default of the last entry."""
    return client_codec.v2_read(LEDGER, EntryId(entry), fence_with=KEY)
