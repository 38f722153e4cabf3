"""Formatting a bookie's folders on a real disk: everything or nothing, in an order that survives a crash."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire_bookie.cli import formatting
from quire_bookie.cli.formatting import FormatPlan, format_bookie
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import StartupError
from quire_bookie.metadata.cookies import Cookie, Cookies, encode_cookie
from quire_bookie.metadata.layout import writable_path
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, Segment
from quire_bookie.server.start.storage_folders import StorageFolders
from quire_bookie.server.start.storage_identity import claim_storage
from tests.sim.metadata import SimMetadata, SimMetadataStore

BOOKIE = BookieId("b-1234")
JOURNAL = ("j/journal-00000001.log", "j/journal-00000002.log")


def yes(_: FormatPlan) -> bool:
    return True


@pytest.fixture
def disk() -> Iterator[LocalDisk]:
    found = LocalDisk()
    yield found
    found.close()


@pytest.fixture
def store() -> SimMetadataStore:
    return SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))


@pytest.fixture
async def folders(tmp_path: Path, store: SimMetadataStore) -> list[str]:
    """Return two stamped folders with data."""
    cookie = Cookie(BOOKIE, (f"quire1:{tmp_path}/j",), (f"quire1:{tmp_path}/l",), "cluster")
    for name, files in (("j", ["1.journal"]), ("l", ["1.log", "index/CURRENT"])):
        (tmp_path / name / "current").mkdir(parents=True)
        (tmp_path / name / "current" / "VERSION").write_bytes(encode_cookie(cookie))
        (tmp_path / name / "current" / "PLACE").write_text("x\n")
        for file in files:
            (tmp_path / name / file).parent.mkdir(exist_ok=True)
            (tmp_path / name / file).write_bytes(b"data")
    await Cookies(store).create(cookie)
    return [f"{tmp_path}/j", f"{tmp_path}/l"]


def left_in(folders: list[str]) -> list[str]:
    return sorted(str(path.name) for folder in folders for path in Path(folder).rglob("*") if path.is_file())


async def name_in_a_ledger(store: SimMetadataStore) -> None:
    metadata = LedgerMetadata(1, 1, 1, (Segment(EntryId(0), (BOOKIE,)),))
    await LedgerNodes(store).create(LedgerId(7), metadata)


async def test_folders_are_emptied_and_the_cookie_is_removed(
    disk: LocalDisk, store: SimMetadataStore, folders: list[str]
) -> None:
    plan = await format_bookie(disk, store, folders, accept_loss=False, confirm=yes)
    assert plan is not None and plan.bookie == BOOKIE and plan.size_bytes == 12
    assert left_in(folders) == []
    assert await Cookies(store).bookies() == []
    assert await format_bookie(disk, store, folders, accept_loss=False, confirm=yes) is None


async def test_a_refused_confirmation_deletes_nothing(
    disk: LocalDisk, store: SimMetadataStore, folders: list[str]
) -> None:
    before = left_in(folders)
    assert await format_bookie(disk, store, folders, accept_loss=False, confirm=lambda _: False) is None
    assert left_in(folders) == before
    assert await Cookies(store).bookies() == [BOOKIE]


async def test_a_bookie_that_ledgers_name_is_refused_and_keeps_its_cookie_if_the_loss_is_accepted(
    disk: LocalDisk, store: SimMetadataStore, folders: list[str]
) -> None:
    await name_in_a_ledger(store)
    before = left_in(folders)
    with pytest.raises(StartupError, match=r"ledger 7 still names bookie b-1234.*--accept-loss"):
        await format_bookie(disk, store, folders, accept_loss=False, confirm=yes)
    assert left_in(folders) == before
    plan = await format_bookie(disk, store, folders, accept_loss=True, confirm=yes)
    assert plan is not None and plan.held_by is not None
    assert left_in(folders) == []
    assert await Cookies(store).bookies() == [BOOKIE]


async def test_a_running_bookie_is_refused_even_if_its_folders_could_be_locked(
    disk: LocalDisk, store: SimMetadataStore, folders: list[str]
) -> None:
    await store.put(writable_path(BOOKIE), b"")
    with pytest.raises(StartupError, match="is running"):
        await format_bookie(disk, store, folders, accept_loss=True, confirm=yes)
    assert "1.log" in left_in(folders)


async def test_a_folder_in_use_is_refused(disk: LocalDisk, store: SimMetadataStore, folders: list[str]) -> None:
    lock = disk.lock_dir(f"{folders[1]}/current")
    with pytest.raises(StartupError, match="in use by another process"):
        await format_bookie(disk, store, folders, accept_loss=True, confirm=yes)
    lock.release()


async def test_the_files_of_a_java_bookie_are_not_deleted(
    disk: LocalDisk, store: SimMetadataStore, tmp_path: Path
) -> None:
    (tmp_path / "current").mkdir()
    cookie = Cookie(BookieId("java:3181"), ("/j",), ("/l",), "cluster")
    (tmp_path / "current" / "VERSION").write_bytes(encode_cookie(cookie))
    with pytest.raises(StartupError, match="Java bookie java:3181"):
        await format_bookie(disk, store, [str(tmp_path)], accept_loss=True, confirm=yes)


async def test_an_unstamped_folder_is_not_deleted(disk: LocalDisk, store: SimMetadataStore, tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    (tmp_path / "precious.txt").write_text("mine")
    assert await format_bookie(disk, store, [str(tmp_path)], accept_loss=True, confirm=yes) is None
    assert (tmp_path / "precious.txt").exists()


@pytest.mark.parametrize("survivors", range(4))
async def test_an_interrupted_format_is_completed_by_the_next(
    disk: LocalDisk,
    store: SimMetadataStore,
    folders: list[str],
    survivors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, calls = formatting._remove, 0

    def remove(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > survivors:
            raise KeyboardInterrupt
        real(path)

    monkeypatch.setattr(formatting, "_remove", remove)
    if survivors < 3:
        with pytest.raises(KeyboardInterrupt):
            await format_bookie(disk, store, folders, accept_loss=False, confirm=yes)
        monkeypatch.setattr(formatting, "_remove", real)
    assert await format_bookie(disk, store, folders, accept_loss=False, confirm=yes) is not None
    assert left_in(folders) == []
    assert await Cookies(store).bookies() == []
    for folder in folders:
        shutil.rmtree(folder)


async def used_folders(tmp_path: Path, disk: LocalDisk, store: SimMetadataStore) -> StorageFolders:
    """Create the folders of a bookie that ran without a journal and was killed."""
    folders = StorageFolders((f"{tmp_path}/j",), (f"{tmp_path}/l",))
    identity = await claim_storage(disk, store, folders, instance_id="cluster", host_name="b", chance=SystemChance())
    await identity.settle(disk)
    identity.release()
    for name in (*JOURNAL, "j/last-mark", "l/0000000000000001.qlog", "l/index/CURRENT"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"data")
    for name in ("l/index.proof", "l/quarantine.txt", "l/current/RUN"):
        (tmp_path / name).write_bytes(b"data")
    return folders


async def test_a_bookie_that_is_started_after_half_a_format_never_starts_empty(
    tmp_path: Path, disk: LocalDisk, store: SimMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = formatting._remove
    for steps in range(20):
        place = tmp_path / str(steps)
        place.mkdir()
        folders = await used_folders(place, disk, store)
        left = steps

        def remove_some(path: Path) -> None:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            remove(path)

        monkeypatch.setattr(formatting, "_remove", remove_some)
        try:
            plan = await format_bookie(disk, store, tuple(folders.places()), accept_loss=True, confirm=yes)
        except KeyboardInterrupt:
            plan = None
        if plan is not None:
            assert steps > 5
            return
        assert (place / "l/current/RUN").exists(), "the note about the risks of that run is deleted after its data"
        try:
            identity = await claim_storage(
                disk, store, folders, instance_id="cluster", host_name="b", chance=SystemChance()
            )
        except StartupError:
            continue
        identity.release()
        # Not refused yet: the checks of storage and journal must refuse it.
        assert (place / "l/index.proof").exists(), "it refuses a missing index"
        assert all((place / name).exists() for name in JOURNAL) or not (place / "j/last-mark").exists()
    raise AssertionError("the format never ended")
