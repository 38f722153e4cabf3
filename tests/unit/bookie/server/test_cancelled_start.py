"""Tests of a start that is cancelled at every moment: it releases everything, and acknowledged entries stay."""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.limits import MIB
from quire_bookie.metadata import layout
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.server import BookieSettings, RunningBookie, start_bookie
from quire_bookie.server.start.start_steps import StartSteps
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from tests.support.bookie_world import RawPeer
from tests.support.roomy_disk import NEVER_FULL
from tests.unit.bookie.server.scene import adds
from tests.unit.bookie.server.start.test_opening import NO_JOURNAL, NO_SYNC, SYNC, Machine


async def cancelled_after(starting: "asyncio.Future[object]", turns: int) -> bool:
    """Let it run for `turns` loop iterations, then cancel it. False: it ended before."""
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait((starting,))
    return starting.cancelled()


async def after_every_turn(machine: Machine, every: int = 1) -> AsyncIterator[None]:
    """Cancel starts of the current folders, each `every` loop iterations later than the last."""
    before = machine.disk
    for turns in itertools.count(step=every):
        machine.disk = copy.deepcopy(before)
        if not await cancelled_after(asyncio.ensure_future(machine.start(SYNC)), turns):
            assert turns > 100, "it was cancelled at every step"
            return
        assert machine.disk._locked == set()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        yield


@pytest.mark.parametrize("journal", [SYNC, NO_SYNC], ids=["synced", "unsynced"])
async def test_a_start_cancelled_at_any_moment_loses_nothing(journal: JournalSettings) -> None:
    machine = Machine()
    await machine.start(journal)
    await machine.add(6)
    await machine.fence(1)
    await machine.kill()
    async for _ in after_every_turn(machine, every=3):
        await machine.start(SYNC)
        assert not machine.in_limbo
        assert await machine.missing() == set()
        await machine.stop()


@pytest.mark.parametrize("journal", [NO_SYNC, NO_JOURNAL], ids=["unsynced", "no journal"])
async def test_a_start_into_limbo_cancelled_at_any_moment_forgets_no_loss(journal: JournalSettings) -> None:
    machine = Machine()
    await machine.start(journal)
    await machine.add(3)
    await machine.fence(2)
    await machine.cut()
    async for _ in after_every_turn(machine, every=5):
        await machine.start(SYNC)
        assert machine.in_limbo
        assert await machine.missing() == machine.acked
        await machine.stop()


async def test_entries_added_while_a_bookie_waited_for_its_registration_survive_a_cancellation(tmp_path: Path) -> None:
    disk, metadata = LocalDisk(), await LocalMetadataStore.open(tmp_path / "metadata")
    settings = BookieSettings(
        data_dir=f"{tmp_path}/bookie",
        disks=DiskRules(threshold=NEVER_FULL),
        listen="127.0.0.1",
        port=0,
        journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB, reserved_bytes=0),
    )

    async def start(steps: StartSteps | None = None) -> RunningBookie:
        return await start_bookie(
            settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance(), steps=steps
        )

    steps = StartSteps()
    first = await start(steps)
    assert set(steps.seconds) == {
        "identity",
        "address",
        "journals",
        "index",
        "storage",
        "replay",
        "rack",
        "registration",
    }
    bookie, settings = first.bookie_id, replace(settings, port=first.port)
    await first.stop()
    await metadata.put(layout.writable_path(bookie), b"another address", ephemeral=True)

    starting = asyncio.ensure_future(start())
    peer = await _connected(settings.port)
    peer.send(adds(0, 3))
    await peer.receive()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", settings.port)
    assert (await metadata.get(layout.writable_path(bookie))).value == b"another address"  # type: ignore[union-attr]

    await metadata.delete(layout.writable_path(bookie))
    again = await start()
    for entry in range(3):
        assert await again.storage.read(LedgerId(3), EntryId(entry))
    await again.stop()
    await metadata.close()
    disk.close()


async def _connected(port: int) -> RawPeer:
    while True:
        try:
            return await RawPeer.connect(port)
        except OSError:
            await asyncio.sleep(0.01)
