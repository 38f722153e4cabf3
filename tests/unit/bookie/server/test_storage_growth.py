"""Tests of storage that grows or loses a volume: refusals, administrators' options, and a crash at every step."""

import dataclasses

import pytest

from quire_bookie.errors import MetadataError, StartupError
from quire_bookie.metadata.cookies import Cookies
from quire_bookie.server.start.storage_folders import FolderState, StorageFolders, inspect
from tests.sim.disk import SimCrashError, Survival
from tests.unit.bookie.server.start.test_storage_identity import FOLDERS, Machine

MORE = StorageFolders(("/d/journal", "/d/journal1"), ("/d/ledgers0", "/d/ledgers1", "/d/ledgers2"))


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def states(machine: Machine, folders: StorageFolders = FOLDERS) -> dict[str, FolderState]:
    """Return the STATE of each folder."""
    return {folder.path: folder.state for folder in await inspect(machine.disk, folders)}


async def check_grown(machine: Machine, bookie: str) -> None:
    """Assert that store and folders name all folders, in order, and that fewer are refused."""
    stored = await Cookies(machine.store).read(bookie)  # type: ignore[arg-type]
    assert stored is not None
    assert stored.value.journal_dirs == ("quire1:/d/journal", "quire1:/d/journal1")
    assert stored.value.ledger_dirs == ("quire1:/d/ledgers0", "quire1:/d/ledgers1", "quire1:/d/ledgers2")
    for folder in MORE.places():
        assert await machine.cookie_at(folder) == stored.value
    await machine.refused("folders cannot be removed", expand=True)


async def test_empty_folders_are_added_when_the_administrator_allows_it(machine: Machine) -> None:
    first = await machine.claim(settle=True)
    await machine.refused("allowStorageExpansion=true", first.bookie, folders=MORE)
    grown = await machine.claim(MORE, expand=True)
    assert (grown.bookie, grown.is_new, grown.lost) == (first.bookie, False, ())
    assert (await machine.claim(MORE)).bookie == first.bookie, "the setting is needed once"
    await check_grown(machine, first.bookie)


async def test_a_folder_with_data_is_not_added(machine: Machine) -> None:
    await machine.claim(settle=True)
    await machine.write("/d/ledgers2/photo.jpg")
    await machine.refused("/d/ledgers2", "photo.jpg", folders=MORE, expand=True)


async def test_a_folder_that_was_in_use_is_not_added_again(machine: Machine) -> None:
    first = await machine.claim(settle=True)
    cookie = await machine.cookie_at("/d/ledgers0")
    for name, content in (("PLACE", b"ledgers 2\n"), ("STATE", b"used 0\n")):
        await machine.write(f"/d/ledgers2/current/{name}", content)
    await machine.write("/d/ledgers2/current/VERSION", await machine.disk.read_file("/d/ledgers0/current/VERSION"))
    await machine.refused("/d/ledgers2", "only empty folders", first.bookie, folders=MORE, expand=True)
    assert cookie == await machine.cookie_at("/d/ledgers0")


async def test_a_folder_of_another_bookie_is_not_added(machine: Machine) -> None:
    first = await machine.claim(settle=True)
    other = await machine.claim(StorageFolders(("/d/journal1",), ("/d/ledgers2",)))
    await machine.refused(first.bookie, other.bookie, folders=MORE, expand=True)


async def test_new_folders_before_the_known_ones_are_refused(machine: Machine) -> None:
    await machine.claim(settle=True)
    swapped = StorageFolders(("/d/journal",), ("/d/ledgers2", "/d/ledgers0", "/d/ledgers1"))
    await machine.refused("swap them back", folders=swapped, expand=True)


async def test_a_moved_data_folder_can_grow(machine: Machine) -> None:
    first = await machine.claim(settle=True)
    for folder in FOLDERS.places():
        for name in await machine.disk.list_dir(f"{folder}/current"):
            content = await machine.disk.read_file(f"{folder}/current/{name}")
            await machine.write(f"/moved{folder}/current/{name}", content)
    await machine.write("/moved/d/journal/last-mark")
    await machine.write("/moved/d/ledgers0/index.proof")
    moved = StorageFolders(("/moved/d/journal",), ("/moved/d/ledgers0", "/moved/d/ledgers1", "/new"))
    assert (await machine.claim(moved, expand=True)).bookie == first.bookie
    assert (await machine.cookie_at("/new")).ledger_dirs == (
        "quire1:/d/ledgers0",
        "quire1:/d/ledgers1",
        "quire1:/new",
    )


@pytest.mark.parametrize("survival", ["none", "all"])
async def test_a_crash_at_any_step_of_growing_never_needs_an_administrator(survival: Survival) -> None:
    for crash_after in range(100):
        machine = Machine()
        first = await machine.claim(settle=True)
        machine.disk.crash_after(crash_after)
        try:
            await machine.claim(MORE, expand=True)
            done = True
        except (SimCrashError, StartupError):
            done = False
        machine.disk = machine.disk.crash(survival, seed=crash_after)
        assert (await machine.claim(MORE, expand=True)).bookie == first.bookie
        await check_grown(machine, first.bookie)
        assert FolderState.LOST not in (await states(machine, MORE)).values()
        if done:
            assert crash_after >= 9
            return
    raise AssertionError("growing never ended")


async def test_growing_that_did_not_reach_the_store_can_be_given_up_or_changed(machine: Machine) -> None:
    first = await machine.claim(settle=True)
    store = machine.store

    class NoWrites:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def put(self, *_: object, **__: object) -> int:
            raise MetadataError("no writes")

    machine.store = NoWrites()  # type: ignore[assignment]
    with pytest.raises(MetadataError):
        await machine.claim(MORE, expand=True)
    machine.store = store
    assert (await machine.cookie_at("/d/ledgers2")) != await machine.cookie_at("/d/ledgers0")
    assert (await machine.claim()).bookie == first.bookie, "given up: the old folders are enough"
    other = StorageFolders(("/d/journal",), ("/d/ledgers0", "/d/ledgers1", "/d/ledgers9", "/d/ledgers2"))
    assert (await machine.claim(other, expand=True)).bookie == first.bookie
    assert (await machine.claim(other)).bookie == first.bookie


# ---- the index in a folder of its own


async def test_a_separate_index_folder_is_permanent(machine: Machine) -> None:
    own = dataclasses.replace(FOLDERS, index_dir="/d/index")
    first = await machine.claim(own)
    assert (await machine.cookie_at("/d/index")).index_dirs == ("quire1:/d/index",)
    assert (await machine.claim(own)).bookie == first.bookie
    await machine.refused("/d/index", "indexDirectories")
    await machine.lose("/d/index")
    await machine.claim(StorageFolders(("/e/j",), ("/e/l",)))
    await machine.refused(
        "/e/index", "remove indexDirectories", folders=StorageFolders(("/e/j",), ("/e/l",), "/e/index")
    )


# ---- lost volumes


async def test_a_lost_volume_is_accepted_empty_only_when_the_administrator_agrees(machine: Machine) -> None:
    first = await machine.claim(settle=True)
    await machine.lose("/d/ledgers1")
    await machine.refused("/d/ledgers1", "mount it", "acceptLostVolumes=true", "empty all folders")
    accepted = await machine.claim(accept_lost=True)
    assert (accepted.bookie, accepted.lost) == (first.bookie, ("/d/ledgers1",))
    again = await machine.claim()
    assert again.lost == ("/d/ledgers1",), "the loss is remembered until the bookie is in limbo"
    assert (await machine.claim(settle=True)).lost == ("/d/ledgers1",)
    assert (await machine.claim()).lost == ()


@pytest.mark.parametrize("folder", ["/d/journal", "/d/ledgers0"])
async def test_a_stamped_folder_whose_files_are_gone_is_lost_at_every_start(machine: Machine, folder: str) -> None:
    await machine.claim(settle=True)
    for name in await machine.disk.list_dir(folder):
        if name != "current":
            await machine.disk.remove(f"{folder}/{name}")
    for _ in range(2):
        await machine.refused(folder, "acceptLostVolumes=true")
    assert (await machine.claim(accept_lost=True)).lost == (folder,)
    assert (await machine.claim()).lost == (folder,)


async def test_a_folder_that_was_never_used_may_be_empty(machine: Machine) -> None:
    first = await machine.claim()
    await machine.write("/d/ledgers0/index.proof")
    assert (await machine.claim()).bookie == first.bookie
    assert set((await states(machine)).values()) == {FolderState.NEW}


async def test_a_later_ledger_folder_without_logs_is_not_lost(machine: Machine) -> None:
    await machine.claim(settle=True)
    assert set((await states(machine)).values()) == {FolderState.USED}
    assert (await machine.claim()).lost == ()


async def test_a_damaged_state_is_refused(machine: Machine) -> None:
    await machine.claim(settle=True)
    await machine.write("/d/journal/current/STATE", b"\0\0")
    await machine.refused("/d/journal/current/STATE", "damaged")


@pytest.mark.parametrize("survival", ["none", "all"])
async def test_a_crash_at_any_step_of_accepting_a_loss_never_forgets_it(survival: Survival) -> None:
    for crash_after in range(100):
        machine = Machine()
        await machine.claim(settle=True)
        await machine.lose("/d/ledgers1")
        machine.disk = machine.disk.crash("all")
        machine.disk.crash_after(crash_after)
        done = await _accept(machine)
        machine.disk = machine.disk.crash(survival, seed=crash_after)
        if (await states(machine))["/d/ledgers1"] is FolderState.NEW:
            await machine.refused("/d/ledgers1", "acceptLostVolumes=true")
            assert not done
        else:
            assert (await machine.claim()).lost == ("/d/ledgers1",)
        if done:
            assert crash_after > 2
            return
    raise AssertionError("accepting never ended")


async def _accept(machine: Machine) -> bool:
    try:
        await machine.claim(accept_lost=True)
    except (SimCrashError, StartupError):
        return False
    return True


async def test_a_volume_that_returns_after_it_was_given_up_is_refused(machine: Machine) -> None:
    first = await machine.claim(settle=True)
    kept = {name: machine.disk.content(name) for name in machine.disk._names if name.startswith("/d/ledgers1/")}
    await machine.lose("/d/ledgers1")
    await machine.claim(accept_lost=True, settle=True)
    for name, content in kept.items():
        await machine.write(name, content)
    await machine.refused("/d/ledgers1", first.bookie, "given up as lost", "empty it")
    await machine.refused("/d/ledgers1", "given up as lost", accept_lost=True)
    await machine.lose("/d/ledgers1")
    assert (await machine.claim(accept_lost=True, settle=True)).bookie == first.bookie
    assert (await machine.claim()).lost == ()


@pytest.mark.parametrize("survival", ["none", "all"])
async def test_a_crash_at_any_step_of_settling_keeps_the_folders_together(survival: Survival) -> None:
    for crash_after in range(20):
        machine = Machine()
        await machine.claim(settle=True)
        await machine.lose("/d/ledgers1")
        machine.disk = machine.disk.crash("all")
        await machine.claim(accept_lost=True)
        machine.disk.crash_after(crash_after + 2)
        try:
            await machine.claim(settle=True)
            done = True
        except (SimCrashError, StartupError):
            done = False
        machine.disk = machine.disk.crash(survival, seed=crash_after)
        assert (await machine.claim()).lost == (() if done else ("/d/ledgers1",))
        await machine.claim(settle=True)
        assert set((await states(machine)).values()) == {FolderState.USED}
        if done:
            assert crash_after == 3
            return
    raise AssertionError("settling never ended")


async def test_a_lost_volume_can_be_accepted_while_growing(machine: Machine) -> None:
    first = await machine.claim(settle=True)
    await machine.lose("/d/ledgers1")
    await machine.refused("/d/ledgers1", folders=MORE, expand=True)
    both = await machine.claim(MORE, expand=True, accept_lost=True)
    assert (both.bookie, both.lost) == (first.bookie, ("/d/ledgers1",))
    await check_grown(machine, first.bookie)
