"""Tests that a bookie which restored metadata lacks, or lists as it was, returns only if an administrator agreed."""

from quire_bookie.metadata.cookies import Cookies
from quire_bookie.metadata.restoration import let_return, may_return
from quire_bookie.server.start.storage_folders import StorageFolders
from tests.unit.bookie.server.start.test_storage_identity import FOLDERS, Machine

MORE = StorageFolders(("/d/journal",), ("/d/ledgers0", "/d/ledgers1", "/d/ledgers2"))


async def test_a_bookie_whose_cookie_is_gone_returns_with_its_id_once_accepted() -> None:
    machine = Machine()
    before = await machine.claim(settle=True)
    await machine.store.delete(f"/ledgers/cookies/{before.bookie}")
    await machine.refused("no longer part of the cluster", f"quire metadata cookies accept {before.bookie}")
    await let_return(machine.store, before.bookie)
    after = await machine.claim()
    assert after.bookie == before.bookie and not after.is_new
    assert await Cookies(machine.store).read(before.bookie) is not None
    assert not await may_return(machine.store, before.bookie)
    assert (await machine.claim()).bookie == before.bookie


async def test_a_bookie_that_got_more_folders_since_returns_with_all_of_them() -> None:
    machine = Machine()
    bookie = (await machine.claim(settle=True)).bookie
    old = await machine.store.get(f"/ledgers/cookies/{bookie}")
    assert old is not None
    await machine.claim(MORE, expand=True, settle=True)
    await machine.store.put(f"/ledgers/cookies/{bookie}", old.value)
    await machine.refused("is not the one in", "cookies accept", folders=MORE, expand=True)
    await let_return(machine.store, bookie)
    assert (await machine.claim(MORE)).bookie == bookie
    cookie = await Cookies(machine.store).read(bookie)
    assert cookie is not None and len(cookie.value.ledger_dirs) == 3


async def test_accepting_one_bookie_does_not_accept_another() -> None:
    machine = Machine()
    bookie = (await machine.claim(settle=True)).bookie
    await machine.store.delete(f"/ledgers/cookies/{bookie}")
    await let_return(machine.store, type(bookie)("another"))
    await machine.refused("no longer part of the cluster")


async def test_accepting_a_known_bookie_changes_nothing() -> None:
    machine = Machine()
    bookie = (await machine.claim(settle=True)).bookie
    before = await Cookies(machine.store).read(bookie)
    await let_return(machine.store, bookie)
    await machine.claim(FOLDERS)
    assert await Cookies(machine.store).read(bookie) == before
    assert not await may_return(machine.store, bookie)
