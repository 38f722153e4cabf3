"""Over TCP at a started bookie: a copy that it deleted as superfluous, and the recovery that needs it here again."""

from collections.abc import AsyncIterator

import pytest

from quire_bookie.model import NO_ENTRY, DigestType, EntryId, LedgerId
from quire_bookie.storage.deletion import Unchanged
from quire_bookie.wire import client_codec
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest
from quire_bookie.wire.messages import AddResponse, ReadResponse, Status
from tests.support.bookie_world import BookieWorld, RawPeer

LEDGER = LedgerId(7)
KEY = bytes(range(20))
DIGEST = Digest(DigestType.DUMMY, b"")


@pytest.fixture
async def world() -> AsyncIterator[BookieWorld]:
    """A bookie that has seen nothing yet."""
    world = BookieWorld()
    await world.start()
    yield world
    await world.stop()


class Client:
    """One connection; each call is one request of V3 and the status of its answer."""

    def __init__(self, peer: RawPeer) -> None:
        self._peer = peer

    @classmethod
    async def of(cls, world: BookieWorld) -> "Client":
        """A new connection."""
        assert world.running is not None
        return cls(await RawPeer.connect(world.running.port))

    async def add(self, entry: int, *, recovery: bool = False, key: bytes = KEY) -> Status:
        """An entry whose bytes tell its id."""
        body = DIGEST.encode_entry(LEDGER, EntryId(entry), NO_ENTRY, 0, ()) + b"%d" % entry
        frame = client_codec.v3_add(entry, LEDGER, EntryId(entry), key, body, recovery=recovery)
        (response,) = ClientCodec(3).feed(await self._peer.ask(frame))
        assert isinstance(response, AddResponse)
        return response.status

    async def read(self, entry: int, *, fence: bool = False) -> Status:
        """Checks the bytes too."""
        frame = client_codec.v3_read(1, LEDGER, EntryId(entry), fence_with=KEY if fence else None)
        (response,) = ClientCodec(3).feed(await self._peer.ask(frame))
        assert isinstance(response, ReadResponse)
        if response.status is Status.OK and entry >= 0:
            assert response.data is not None and bytes(response.data).endswith(b"%d" % entry)
        return response.status

    async def close(self) -> None:
        """Hang up."""
        await self._peer.close()


async def deleted(world: BookieWorld, client: Client, *, copy: bool) -> None:
    """A ledger with five entries, gone."""
    assert world.running is not None
    for entry in range(5):
        assert await client.add(entry) is Status.OK
    storage = world.running.storage
    if copy:
        info = await storage.load_ledger(LEDGER)
        assert info is not None
        assert await storage.delete_copy(LEDGER, Unchanged.of(info))
    else:
        await storage.delete_ledger(LEDGER)
    assert await client.read(0) is Status.NO_LEDGER
    assert await client.add(5) is Status.FENCED
    assert await client.read(NO_ENTRY, fence=True) is Status.NO_LEDGER


@pytest.mark.parametrize("crash_first", [False, True])
async def test_a_recovery_fills_a_superfluous_copy_again_and_a_crash_takes_none_of_it(
    world: BookieWorld, crash_first: bool
) -> None:
    client = await Client.of(world)
    await deleted(world, client, copy=True)
    if crash_first:
        await world.crash()
        await world.restart()
        client = await Client.of(world)
        assert await client.read(0) is Status.NO_LEDGER
    assert await client.add(2, recovery=True, key=bytes(20)) is Status.UNAUTHORIZED
    assert await client.read(2) is Status.NO_LEDGER
    for entry in (2, 3):
        assert await client.add(entry, recovery=True) is Status.OK
    for _ in range(3):
        assert [await client.read(entry) for entry in range(5)] == [
            Status.NO_ENTRY,
            Status.NO_ENTRY,
            Status.OK,
            Status.OK,
            Status.NO_ENTRY,
        ]
        assert await client.add(5) is Status.FENCED
        assert await client.read(NO_ENTRY, fence=True) is Status.OK
        await world.crash()
        await world.restart()
        client = await Client.of(world)
    assert await client.add(4, recovery=True) is Status.OK
    await client.close()


async def test_a_ledger_that_is_gone_from_the_cluster_goes_on_refusing(world: BookieWorld) -> None:
    client = await Client.of(world)
    await deleted(world, client, copy=False)
    for _ in range(2):
        assert await client.add(2, recovery=True) is Status.NO_LEDGER
        assert await client.read(2) is Status.NO_LEDGER
        assert await client.add(5) is Status.FENCED
        await world.crash()
        await world.restart()
        client = await Client.of(world)
    await client.close()
