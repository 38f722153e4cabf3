"""A real bookie in this process, with its folder on a real disk, a real index and a port; the metadata is in memory."""

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.limits import KIB, MIB
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.model import DigestType, EntryId, LedgerId
from quire_bookie.server import BookieSettings, RunningBookie, start_bookie
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import AddResponse, ReadResponse, Status
from tests.sim.metadata import SimMetadata, SimMetadataStore
from tests.support.bookie_world import RawPeer
from tests.support.roomy_disk import NEVER_FULL

KEY = master_key(b"secret")
DIGEST = Digest(DigestType.CRC32C, b"secret")
PIPELINED = 64
SETTINGS = BookieSettings(
    data_dir="",
    listen="127.0.0.1",
    advertise="127.0.0.1",
    port=0,
    disks=DiskRules(threshold=NEVER_FULL, warn_threshold=NEVER_FULL, low_watermark=NEVER_FULL),
    journal=JournalSettings(file_bytes=256 * KIB, group_bytes_max=64 * KIB, spare_files_max=2, reserved_bytes=0),
    storage=StorageSettings(
        write_cache_bytes=8 * MIB, read_cache_bytes=MIB, entry_log_bytes_max=2 * MIB, reserved_bytes=0
    ),
    index_cache_bytes=4 * MIB,
)


def payload(tag: str, ledger: int, entry: int) -> bytes:
    """Return the unique content of an entry."""
    chance = random.Random(f"{tag}/{ledger}/{entry}")
    return f"{tag}/{ledger}/{entry}/".encode() + chance.randbytes(chance.randrange(200, 4000))


@dataclass
class Known:
    """Records the acknowledged entries of each ledger, and the fenced ledgers."""

    tag: str
    entries: dict[int, int] = field(default_factory=dict)
    """Number of entries by ledger; ids begin with 0."""
    fenced: set[int] = field(default_factory=set)

    def copy(self) -> "Known":
        """Return a copy of the current state."""
        return Known(self.tag, dict(self.entries), set(self.fenced))


class Client:
    """A V2 client that sends many requests and collects the responses."""

    def __init__(self, peer: RawPeer) -> None:
        self._peer = peer
        self._codec = ClientCodec(2)

    @classmethod
    async def connect(cls, port: int) -> "Client":
        """Open a connection."""
        return cls(await RawPeer.connect(port))

    async def add(self, tag: str, ledger: int, first: int, count: int) -> list[Status]:
        """Add entries to a ledger. Returns the statuses in order."""
        entries = []
        for entry in range(first, first + count):
            body = payload(tag, ledger, entry)
            head = DIGEST.encode_entry(LedgerId(ledger), EntryId(entry), EntryId(entry - 1), len(body), (body,))
            entries.append((head, body))
        self._peer.send(b"".join(client_codec.v2_adds(KEY, entries, recovery=False)))
        statuses: list[Status] = []
        for _ in range(count):
            (response,) = self._codec.feed(await self._peer.receive())
            assert isinstance(response, AddResponse)
            statuses.append(response.status)
        return statuses

    async def fence(self, ledger: int) -> Status:
        """Fence by a read of the last entry."""
        request = client_codec.v2_read(LedgerId(ledger), EntryId(0), fence_with=KEY)
        (response,) = self._codec.feed(await self._peer.ask(request))
        assert isinstance(response, ReadResponse)
        return response.status

    async def read_all(self, tag: str, ledger: int, count: int) -> list[Status]:
        """Read entries 0..count-1. Returns statuses by id. AssertionError for wrong content."""
        statuses = [Status.OK] * count
        for first in range(0, count, PIPELINED):
            ids = range(first, min(first + PIPELINED, count))
            self._peer.send(b"".join(client_codec.v2_read(LedgerId(ledger), EntryId(each)) for each in ids))
            for _ in ids:
                (response,) = self._codec.feed(await self._peer.receive())
                assert isinstance(response, ReadResponse)
                statuses[response.entry] = response.status
                if response.data is not None:
                    found = DIGEST.decode_entry(response.data, LedgerId(ledger), response.entry).payload
                    assert bytes(found) == payload(tag, ledger, response.entry), f"wrong bytes in {ledger}"
        return statuses

    async def close(self) -> None:
        """Close the connection."""
        await self._peer.close()


class Place:
    """Owns a bookie's folder and metadata; starts and stops bookies on them."""

    def __init__(self, folder: Path, metadata: SimMetadata | None = None) -> None:
        self.folder = folder
        self.metadata = metadata or SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
        self.running: RunningBookie | None = None
        self._disk: LocalDisk | None = None

    async def start(self, **changes: object) -> RunningBookie:
        """Start the bookie; if that fails, its resources are released."""
        settings = replace(SETTINGS, data_dir=str(self.folder), **changes)  # type: ignore[arg-type]
        self._disk = disk = LocalDisk()
        try:
            self.running = await start_bookie(
                settings,
                metadata=SimMetadataStore(self.metadata),
                disk=disk,
                clock=SystemClock(),
                chance=SystemChance(),
            )
        except BaseException:
            self._disk = None
            disk.close()
            raise
        return self.running

    async def stop(self) -> None:
        """Stop cleanly."""
        running, self.running = self.running, None
        if running is not None:
            await running.stop()
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.close()

    async def client(self) -> Client:
        """Connect to the running bookie."""
        assert self.running is not None
        return await Client.connect(self.running.port)

    async def add(self, known: Known, ledger: int, count: int) -> None:
        """Add entries, which must all be acknowledged."""
        if ledger not in known.entries:
            self.metadata.write(ledger_path(LedgerId(ledger)), b"", None)
        first = known.entries.get(ledger, 0)
        client = await self.client()
        statuses = await client.add(known.tag, ledger, first, count)
        await client.close()
        assert statuses == [Status.OK] * count, statuses
        known.entries[ledger] = first + count

    async def fence(self, known: Known, ledger: int) -> None:
        """Fence a ledger, which must succeed."""
        client = await self.client()
        assert await client.fence(ledger) == Status.OK
        await client.close()
        known.fenced.add(ledger)

    def copy_to(self, folder: Path) -> Path:
        """Copy the folder as a killed process leaves it; call it when no entry is being written.

        A small file may be replaced meanwhile (the scrub stores its position): the copy has the old or the new content.
        """
        return shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("*.new"))
