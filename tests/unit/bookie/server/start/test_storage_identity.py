"""Tests of the identity of storage: volumes that are new, known, mixed up, foreign or missing."""

import dataclasses
import random

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import StartupError
from quire_bookie.metadata.cookies import Cookie, Cookies, decode_cookie, encode_cookie
from quire_bookie.model import BookieId
from quire_bookie.server.start.storage_folders import StorageFolders
from quire_bookie.server.start.storage_identity import ClaimOptions, StorageIdentity, claim_storage, draw_bookie_id
from tests.sim.disk import SimCrashError, SimDisk
from tests.sim.metadata import SimMetadata, SimMetadataStore

INSTANCE = "e7dcf228-ff3a-4e8e-bd9f-7cd8b626f023"
FOLDERS = StorageFolders(("/d/journal",), ("/d/ledgers0", "/d/ledgers1"))
JAVA = Cookie(BookieId("127.0.0.1:3181"), ("/d/journal",), ("/d/ledgers0", "/d/ledgers1"), INSTANCE)


class Machine:
    """Holds a disk and a cluster, and starts a bookie on them."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.server = SimMetadata(random.Random(1), delay_s=(0.0, 0.0))
        self.store = SimMetadataStore(self.server)

    async def claim(
        self,
        folders: StorageFolders = FOLDERS,
        instance_id: str = INSTANCE,
        *,
        expand: bool = False,
        accept_lost: bool = False,
        settle: bool = False,
        bookie: str | None = None,
        must_be_id: bool = False,
    ) -> StorageIdentity:
        """Start, and stop for the next start. `settle`: the bookie served in between."""
        identity = await claim_storage(
            self.disk,
            self.store,
            folders,
            instance_id=instance_id,
            host_name="pod-0",
            chance=SystemChance(),
            options=ClaimOptions(
                expand, accept_lost, None if bookie is None else BookieId(bookie), must_be_id=must_be_id
            ),
        )
        try:
            if settle:
                await self.write("/d/journal/last-mark")
                await self.write("/d/ledgers0/index.proof")
                await identity.settle(self.disk)
        finally:
            identity.release()
        return identity

    async def refused(
        self,
        *words: str,
        folders: StorageFolders = FOLDERS,
        instance_id: str = INSTANCE,
        expand: bool = False,
        accept_lost: bool = False,
    ) -> None:
        """Assert that a start fails with one line that has these words, and changes nothing in the store."""
        before = len(self.server.history)
        with pytest.raises(StartupError) as raised:
            await self.claim(folders, instance_id, expand=expand, accept_lost=accept_lost)
        for word in words:
            assert word in str(raised.value)
        assert "\n" not in str(raised.value)
        assert len(self.server.history) == before

    async def write(self, path: str, content: bytes = b"data") -> None:
        """Write a file and create its parent folders."""
        await self.disk.make_dirs(path.rpartition("/")[0])
        await self.disk.replace_file(path, content)

    async def cookie_at(self, folder: str) -> Cookie:
        return decode_cookie(await self.disk.read_file(f"{folder}/current/VERSION"))

    async def lose(self, folder: str) -> None:
        """Empty the volume."""
        for name in await self.disk.list_dir(f"{folder}/current"):
            await self.disk.remove(f"{folder}/current/{name}")
        for name in await self.disk.list_dir(folder):
            if name != "current":
                await self.disk.remove(f"{folder}/{name}")


@pytest.fixture
def machine() -> Machine:
    return Machine()


async def test_empty_volumes_become_a_new_bookie_stamped_everywhere(machine: Machine) -> None:
    identity = await machine.claim()
    assert identity.is_new
    assert identity.bookie.startswith("pod-0-")
    int(identity.bookie.removeprefix("pod-0-"), 16)
    assert len(identity.bookie) == len("pod-0-") + 8
    stored = await Cookies(machine.store).read(identity.bookie)
    assert stored is not None
    assert stored.value.journal_dirs == ("quire1:/d/journal",)
    assert stored.value.ledger_dirs == ("quire1:/d/ledgers0", "quire1:/d/ledgers1")
    assert stored.value.instance_id == INSTANCE
    for folder in FOLDERS.places():
        assert await machine.cookie_at(folder) == stored.value


async def test_the_same_volumes_stay_the_same_bookie(machine: Machine) -> None:
    first = await machine.claim()
    await machine.write("/d/journal/0000.journal")
    await machine.write("/d/ledgers0/current/0.entrylog")
    again = await machine.claim()
    assert (again.bookie, again.is_new) == (first.bookie, False)
    assert len(await Cookies(machine.store).bookies()) == 1


async def test_two_bookies_never_get_the_same_id(machine: Machine) -> None:
    other = StorageFolders(("/e/journal",), ("/e/ledgers",))
    assert (await machine.claim()).bookie != (await machine.claim(other)).bookie


async def test_files_of_a_stamped_folder_may_have_names_of_java_files(machine: Machine) -> None:
    await machine.claim()
    await machine.write("/d/ledgers0/current/0.log")
    await machine.write("/d/journal/current/lastMark")
    assert not (await machine.claim()).is_new


async def test_a_volume_missing_beside_surviving_ones_is_refused(machine: Machine) -> None:
    bookie = (await machine.claim()).bookie
    await machine.lose("/d/ledgers1")
    await machine.refused("/d/ledgers1", bookie, "empty")


async def test_a_start_without_all_its_volumes_is_a_new_bookie_and_not_the_old_one_empty(machine: Machine) -> None:
    first = await machine.claim()
    for folder in FOLDERS.places():
        await machine.lose(folder)
    second = await machine.claim()
    assert second.is_new
    assert second.bookie != first.bookie
    assert set(await Cookies(machine.store).bookies()) == {first.bookie, second.bookie}


async def test_volumes_mounted_in_each_others_place_are_refused(machine: Machine) -> None:
    await machine.claim()
    await machine.refused(
        "/d/ledgers1", "ledgers 1", folders=StorageFolders(("/d/journal",), ("/d/ledgers1", "/d/ledgers0"))
    )
    await machine.refused("journal 0", folders=StorageFolders(("/d/ledgers0",), ("/d/journal", "/d/ledgers1")))


async def test_a_moved_data_folder_is_still_the_same_bookie(machine: Machine) -> None:
    first = await machine.claim()
    for folder in FOLDERS.places():
        for name in ("VERSION", "PLACE"):
            content = await machine.disk.read_file(f"{folder}/current/{name}")
            await machine.write(f"/moved{folder}/current/{name}", content)
    moved = StorageFolders(("/moved/d/journal",), ("/moved/d/ledgers0", "/moved/d/ledgers1"))
    assert (await machine.claim(moved)).bookie == first.bookie


async def test_more_or_fewer_folders_than_stamped_are_refused(machine: Machine) -> None:
    await machine.claim()
    await machine.refused("2 ledger folders", folders=StorageFolders(("/d/journal",), ("/d/ledgers0",)))
    more = StorageFolders(("/d/journal",), ("/d/ledgers0", "/d/ledgers1", "/d/ledgers2"))
    await machine.refused("2 ledger folders", folders=more)


async def test_storage_of_another_cluster_is_refused(machine: Machine) -> None:
    await machine.claim()
    await machine.refused(INSTANCE, "other-instance", instance_id="other-instance")


async def test_storage_of_two_bookies_is_refused(machine: Machine) -> None:
    first = await machine.claim()
    other = await machine.claim(StorageFolders(("/e/journal",), ("/e/ledgers0", "/e/ledgers1")))
    mixed = StorageFolders(("/d/journal",), ("/d/ledgers0", "/e/ledgers1"))
    await machine.refused(first.bookie, other.bookie, folders=mixed)


async def test_storage_whose_cookie_was_deleted_is_refused(machine: Machine) -> None:
    bookie = (await machine.claim()).bookie
    await machine.write("/d/journal/0000.journal")
    machine.server.remove(f"/ledgers/cookies/{bookie}")
    await machine.refused(bookie, "cookie was deleted")


async def test_another_cookie_under_our_id_is_refused(machine: Machine) -> None:
    bookie = (await machine.claim()).bookie
    stored = await Cookies(machine.store).read(bookie)
    assert stored is not None
    forged = dataclasses.replace(stored.value, journal_dirs=("quire1:/elsewhere",))
    machine.server.write(f"/ledgers/cookies/{bookie}", encode_cookie(forged), None)
    await machine.refused(bookie, "is not the one in")


@pytest.mark.parametrize(
    "path",
    ["/d/journal/current/17.txn", "/d/ledgers0/current/0.log", "/d/ledgers1/current/lastMark", "/d/journal/lastMark"],
)
async def test_files_of_a_java_bookie_are_refused_and_left_alone(machine: Machine, path: str) -> None:
    await machine.write(path)
    names = sorted(machine.disk._names)
    await machine.refused(path.rpartition("/")[2], "Java")
    assert sorted(machine.disk._names) == names


async def test_a_java_cookie_is_refused_by_name(machine: Machine) -> None:
    await machine.write("/d/journal/current/VERSION", encode_cookie(JAVA))
    await machine.refused("Java bookie 127.0.0.1:3181")


async def test_a_later_format_is_refused_with_its_name(machine: Machine) -> None:
    await machine.claim()
    later = (await machine.disk.read_file("/d/journal/current/VERSION")).replace(b"quire1:", b"quire2:")
    await machine.write("/d/journal/current/VERSION", later)
    await machine.refused("quire2", "quire1")


async def test_files_of_unknown_origin_are_refused(machine: Machine) -> None:
    await machine.write("/d/ledgers0/holiday.jpg")
    await machine.refused("/d/ledgers0", "holiday.jpg")


@pytest.mark.parametrize("name", ["lost+found", ".snapshot", "LOCK"])
async def test_files_that_file_systems_create_in_empty_volumes_are_ignored(machine: Machine, name: str) -> None:
    await machine.write(f"/d/ledgers0/{name}")
    assert (await machine.claim()).is_new


async def test_a_damaged_version_file_is_refused_and_not_overwritten(machine: Machine) -> None:
    await machine.claim()
    await machine.write("/d/journal/current/VERSION", b"\0\0\0\0")
    await machine.refused("/d/journal/current/VERSION", "put it back", "the same in every folder")


@pytest.mark.parametrize(
    ("folder", "name"), [("journal", "journal-00000001.log"), ("ledgers0", "0000000000000001.qlog")]
)
async def test_our_own_files_without_a_version_file_are_recognised(machine: Machine, folder: str, name: str) -> None:
    await machine.claim()
    await machine.write(f"/d/{folder}/{name}")
    await machine.disk.remove(f"/d/{folder}/current/VERSION")
    await machine.refused(f"/d/{folder} holds {name} but its current/VERSION is missing", "the same in every folder")


async def test_folders_in_use_are_refused_until_released(machine: Machine) -> None:
    async def start() -> StorageIdentity:
        return await claim_storage(
            machine.disk, machine.store, FOLDERS, instance_id=INSTANCE, host_name="h", chance=SystemChance()
        )

    running = await start()
    await machine.refused("in use")
    running.release()
    running.release()
    assert (await start()).bookie == running.bookie


async def test_a_folder_that_cannot_be_written_is_refused_in_one_line(machine: Machine) -> None:
    machine.disk.fail_next("replace", "PLACE", PermissionError(13, "Permission denied", "/d/journal/current/PLACE"))
    await machine.refused("/d/journal", "Permission denied")
    assert (await machine.claim()).is_new, "the locks were released"


async def test_a_comma_in_a_journal_folder_is_refused(machine: Machine) -> None:
    await machine.refused("/d/a,b", folders=StorageFolders(("/d/a,b",), ("/d/l",)))


@pytest.mark.parametrize("survival", ["none", "all"])
async def test_a_crash_at_any_step_of_stamping_never_needs_an_administrator(survival: str) -> None:
    """Crash after k disk changes for every k; the next start completes or repeats the stamping."""
    for crash_after in range(100):
        machine = Machine()
        machine.disk.crash_after(crash_after)
        try:
            first = await machine.claim()
        except (SimCrashError, StartupError):
            first = None
        if first is not None:
            assert crash_after > 2
            return
        machine.disk = machine.disk.crash(survival)  # type: ignore[arg-type]
        second = await machine.claim()
        third = await machine.claim()
        assert second.bookie == third.bookie
        assert await Cookies(machine.store).bookies() == [second.bookie]
    raise AssertionError("stamping never ended")


async def test_a_crash_before_the_store_has_the_cookie_is_completed_under_the_same_id(machine: Machine) -> None:
    machine.server.away = True
    with pytest.raises(Exception, match="cannot be reached"):
        await machine.claim()
    stamped = await machine.cookie_at("/d/journal")
    machine.server.away = False
    assert (await machine.claim()).bookie == stamped.bookie


def test_an_id_has_only_characters_that_every_client_accepts() -> None:
    class Zeros:
        def token(self, size: int) -> bytes:
            return bytes(size)

    assert draw_bookie_id("host name/ü", Zeros()) == "host-name---00000000"  # type: ignore[arg-type]
    assert draw_bookie_id("", Zeros()) == "bookie-00000000"  # type: ignore[arg-type]


# ---- ids that are configured
async def test_a_new_bookie_gets_the_configured_id_and_keeps_it() -> None:
    machine = Machine()
    first = await machine.claim(bookie="host:3181", settle=True)
    assert (first.bookie, first.is_new) == ("host:3181", True)
    assert (await machine.claim(bookie="other-host:3181")).bookie == "host:3181", "an id belongs to its storage"
    assert (await machine.claim()).bookie == "host:3181"


async def test_empty_folders_never_come_up_under_an_id_that_the_cluster_knows() -> None:
    machine = Machine()
    await machine.claim(bookie="host:3181", settle=True)
    machine.disk = SimDisk()
    with pytest.raises(StartupError, match=r"host:3181 is part of the cluster.*folders here are empty.*decommission"):
        await machine.claim(bookie="host:3181")
    assert not await machine.disk.exists("/d/journal/current/VERSION"), "the folders are unchanged"
    assert (await machine.claim()).bookie.startswith("pod-0-"), "they can still become another bookie's"


async def test_a_configured_id_that_differs_from_that_of_the_storage_is_refused() -> None:
    machine = Machine()
    await machine.claim(bookie="a", must_be_id=True, settle=True)
    assert (await machine.claim(bookie="a", must_be_id=True)).bookie == "a"
    with pytest.raises(StartupError, match=r"bookieId is b, but .* belong to bookie a"):
        await machine.claim(bookie="b", must_be_id=True)
