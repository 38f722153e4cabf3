"""A journal that fails for good under a standalone: the bookie restarts by itself and nothing acknowledged is lost."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.disk import JournalFile
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import QuireError
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import Buffer
from quire_bookie.server import BookieSettings
from quire_bookie.settings.disks import DiskRules
from quire_broker.managed_ledger import ManagedLedgerFactory, Position
from quire_broker.server.broker import BrokerSettings
from quire_broker.settings.managed_ledger import ManagedLedgerSettings
from quire_broker.standalone import StandaloneSettings, run_standalone, with_quorums
from quire_broker.topic.topics import TopicsSettings
from tests.support.roomy_disk import NEVER_FULL

NAME = "public/default/persistent/poisoned"


class FailingFile:
    """A real journal file whose device fails every write once `broken` is set."""

    def __init__(self, file: JournalFile, disk: "FailingDisk") -> None:
        self._file, self._disk = file, disk

    @property
    def path(self) -> str:
        """As the real file's."""
        return self._file.path

    @property
    def alignment_bytes(self) -> int:
        """As the real file's."""
        return self._file.alignment_bytes

    def submit(self, offset: int, buffers: Sequence[Buffer], done: Callable[[BaseException | None], None]) -> None:
        """The write happens, or the device says that it failed."""
        if self._disk.broken:
            self._disk.broken = False
            asyncio.get_running_loop().call_soon(done, OSError(5, "Input/output error"))
        else:
            self._file.submit(offset, buffers, done)

    async def close(self) -> None:
        """Close the real file."""
        await self._file.close()


class FailingDisk(LocalDisk):
    """The real disk with one failure of the journal's device."""

    broken = False

    async def open_journal(self, path: str, *, synced: bool = True) -> JournalFile:
        """The real file behind the failure."""
        return FailingFile(await super().open_journal(path, synced=synced), self)


async def append(factory: ManagedLedgerFactory, payload: bytes) -> Position:
    """Append as a broker does, and again after a failure, until it is acknowledged."""
    for _ in range(200):
        answered: asyncio.Future[Position | None] = asyncio.get_running_loop().create_future()

        def done(
            position: Position | None,
            error: QuireError | None,
            answered: asyncio.Future[Position | None] = answered,
        ) -> None:
            answered.set_result(position)

        ledger = await factory.open(NAME)
        ledger.append(payload, done)
        position = await asyncio.wait_for(answered, 60)
        if position is not None:
            return position
        await asyncio.sleep(0.1)  # the bookie is on its way back in real time: there is no event for a client
    raise AssertionError("the bookie did not come back")


async def test_a_failed_journal_write_restarts_the_bookie_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    ledgers = with_quorums(ManagedLedgerSettings(), 1)
    broker = BrokerSettings(
        listen="127.0.0.1", port=0, http_port=0, advertise="127.0.0.1", topics=TopicsSettings(ledger=ledgers)
    )
    bookie = BookieSettings(
        "", listen="127.0.0.1", advertise="127.0.0.1", poisoned_reads_s=0.0, disks=DiskRules(threshold=NEVER_FULL)
    )
    settings = StandaloneSettings(str(tmp_path / "data"), 1, bookie_port=0, bookie=bookie, broker=broker)
    metadata = await LocalMetadataStore.open(tmp_path / "metadata")
    disk = FailingDisk()
    running = await run_standalone(settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance())
    assert running.client is not None
    factory = ManagedLedgerFactory(running.client, metadata, ledgers, SystemClock(), SystemChance())
    try:
        before = [await append(factory, b"before-%d" % number) for number in range(20)]
        disk.broken = True
        after = await append(factory, b"after")
        assert running.restarts == 1
        assert before[-1] < after
        ledger = await factory.open(NAME)
        found = [
            bytes(entry.data) for position in [*before, after] for entry in await ledger.read(position, entries_max=1)
        ]
        assert found == [b"before-%d" % number for number in range(20)] + [b"after"]
    finally:
        await factory.close()
        await running.stop()
        await metadata.close()
        disk.close()
