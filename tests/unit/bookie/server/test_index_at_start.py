"""Tests of a start whose index is lost or damaged: refused with the remedy, or rebuilt if configured."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import DamagedError
from quire_bookie.limits import MIB
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.server.process import RunningBookie
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from tests.support.roomy_disk import NEVER_FULL
from tests.unit.bookie.storage.store import body_of, run_of

IDS = range(50)


class Machine:
    """Holds one bookie's folders on the real disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = LocalDisk()
        self.settings = BookieSettings(
            data_dir=f"{folder}/bookie",
            disks=DiskRules(threshold=NEVER_FULL),
            listen="127.0.0.1",
            port=0,
            journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB, reserved_bytes=0),
        )

    async def start(self, metadata: LocalMetadataStore, *, rebuild: bool = False) -> RunningBookie:
        """Return a running bookie."""
        settings = dataclasses.replace(self.settings, rebuild_index_on_damage=rebuild)
        return await start_bookie(
            settings, metadata=metadata, disk=self.disk, clock=SystemClock(), chance=SystemChance()
        )


@pytest.mark.parametrize("damage", ["missing", "damaged"])
async def test_a_start_without_its_index_is_refused_or_rebuilds_it(tmp_path: Path, damage: str) -> None:
    machine = Machine(tmp_path)
    metadata = await LocalMetadataStore.open(f"{tmp_path}/metadata")
    running = await machine.start(metadata)
    await running.storage.load_ledger(LedgerId(7))
    info = running.storage.create_ledger(LedgerId(7), b"k" * 20)
    running.storage.put(info, run_of(7, 0, [body_of(7, entry) for entry in IDS]))
    await running.stop()
    index = tmp_path / "bookie" / "ledgers" / "index"
    if damage == "missing":
        shutil.rmtree(index)
    else:
        (index / "CURRENT").write_bytes(b"nonsense")
    for _ in range(2):
        with pytest.raises(DamagedError, match=r"quire bookie rebuild-index.*rebuildIndexOnDamage"):
            await machine.start(metadata)
    running = await machine.start(metadata, rebuild=True)
    for entry in IDS:
        assert await running.storage.read(LedgerId(7), EntryId(entry)) == body_of(7, entry)
    assert running.scrubbing.damage.findings == [] and running.scrubbing.stats.rounds == 0
    await running.stop()
    running = await machine.start(metadata)
    assert (await running.storage.load_ledger(LedgerId(7))) is not None
    await running.stop()
    await metadata.close()
    machine.disk.close()
