"""Tests of a journal with lost or older files: refused, or, if the loss is accepted, limbo with the intact records."""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from quire_bookie.errors import JournalDamagedError, QuireError
from quire_bookie.limits import MIB
from tests.sim.disk import SimDisk
from tests.unit.bookie.server.start.test_opening import SETTINGS, SYNC, Machine

Damage = Callable[[SimDisk, list[str]], None]


def _remove(disk: SimDisk, *paths: str) -> None:
    for path in paths:
        del disk._names[path]
        disk._durable_names.pop(path, None)


def _cut_half(disk: SimDisk, path: str) -> None:
    disk.cut(path, 4096)


DAMAGES: dict[str, Damage] = {
    "newest removed": lambda disk, files: _remove(disk, files[-1]),
    "two newest removed": lambda disk, files: _remove(disk, *files[-2:]),
    "oldest removed": lambda disk, files: _remove(disk, files[0]),
    "newest cut": lambda disk, files: _cut_half(disk, files[-1]),
    "mark removed": lambda disk, files: _remove(disk, "/j0/last-mark"),
    "mark damaged": lambda disk, files: disk.corrupt("/j0/last-mark", 20),
    "witness removed": lambda disk, files: _remove(disk, "/j0/journal.witness"),
    "all removed": lambda disk, files: _remove(disk, *files),
    "bit flipped": lambda disk, files: disk.corrupt(files[0], 5000),
}


async def _written() -> Machine:
    """Return a bookie whose mark is in the first of several journal files, with a fenced ledger, after a power cut."""
    machine = Machine(settings=replace(SETTINGS, storage=replace(SETTINGS.storage, write_cache_bytes=4 * MIB)))
    await machine.start(SYNC)
    await machine.add(60)
    await machine.fence(2)
    await machine.add(90)
    await machine.fence(0)
    await machine.cut()
    return machine


def _files(machine: Machine) -> list[str]:
    disk = machine.disk
    found = {}
    for path in disk._names:
        content = disk.content(path)
        if path.startswith("/j0/") and path.endswith(".log") and content[:8] == b"QuireJnl":
            found[int.from_bytes(content[32:40], "little")] = path
    return [found[generation] for generation in sorted(found)]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_journal_is_refused_and_accepting_the_loss_leads_into_limbo(damage: str) -> None:
    machine = await _written()
    files = _files(machine)
    assert len(files) > 2
    DAMAGES[damage](machine.disk, files)
    with pytest.raises(JournalDamagedError, match="accept-lost-volumes"):
        await machine.start(SYNC)
    await machine.start(SYNC, accept_lost_volumes=True)
    assert machine.in_limbo
    unknown = await machine.missing()
    if damage in ("mark removed", "mark damaged", "witness removed"):
        assert unknown == set(), "intact entries are kept"
    else:
        assert unknown < machine.acked
    await machine.stop()
    await machine.start(SYNC)
    assert machine.in_limbo and await machine.missing() == unknown


async def test_without_damage_accepting_losses_changes_nothing() -> None:
    machine = await _written()
    await machine.start(SYNC, accept_lost_volumes=True)
    assert not machine.in_limbo and await machine.missing() == set()


@pytest.mark.parametrize("damage", ["newest removed", "mark damaged"])
async def test_a_power_cut_at_any_step_of_accepting_the_loss_denies_nothing(damage: str) -> None:
    steps = 0
    while True:
        machine = await _written()
        DAMAGES[damage](machine.disk, _files(machine))
        machine.disk.crash_after(steps)
        with contextlib.suppress(OSError, QuireError):
            await machine.start(SYNC, accept_lost_volumes=True)
        done = not machine.disk.crashed
        await machine.cut()
        try:
            await machine.start(SYNC)
        except JournalDamagedError:
            await machine.start(SYNC, accept_lost_volumes=True)
        assert machine.in_limbo
        await machine.missing()
        await machine.stop()
        if done:
            break
        steps += 3
    assert steps > 20
