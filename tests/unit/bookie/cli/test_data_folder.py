"""Claims of folders on a real disk, by the names in them."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire_bookie.cli.data_folder import BOOKIE_FOLDER, STANDALONE_FOLDER, claim_data_folder, warn_of_open_folders
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import StartupError


@pytest.fixture
def disk() -> Iterator[LocalDisk]:
    found = LocalDisk()
    yield found
    found.close()


async def test_a_missing_folder_is_created_and_locked(disk: LocalDisk, tmp_path: Path) -> None:
    lock = await claim_data_folder(disk, f"{tmp_path}/a/b", STANDALONE_FOLDER)
    with pytest.raises(StartupError, match="in use by another process"):
        await claim_data_folder(disk, f"{tmp_path}/a/b", STANDALONE_FOLDER)
    lock.release()
    (await claim_data_folder(disk, f"{tmp_path}/a/b", STANDALONE_FOLDER)).release()


@pytest.mark.parametrize("names", [["metadata", "bookie-0", "standalone.json"], ["lost+found"], [".hidden"], []])
async def test_our_own_folder_and_an_empty_volume_are_claimed(
    disk: LocalDisk, tmp_path: Path, names: list[str]
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    (await claim_data_folder(disk, str(tmp_path), STANDALONE_FOLDER)).release()


@pytest.mark.parametrize(
    ("names", "ours", "reason"),
    [
        (["notes.txt"], STANDALONE_FOLDER, "not Quire's"),
        (["current"], STANDALONE_FOLDER, "not Quire's"),
        (["journal", "ledgers"], STANDALONE_FOLDER, "quire bookie start"),
        (["bookie-0"], BOOKIE_FOLDER, "quire standalone"),
    ],
)
async def test_a_foreign_folder_is_refused_and_unchanged(
    disk: LocalDisk, tmp_path: Path, names: list[str], ours: re.Pattern[str], reason: str
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(StartupError, match=reason):
        await claim_data_folder(disk, str(tmp_path), ours)
    assert sorted(os.listdir(tmp_path)) == sorted(names)


async def test_a_file_is_refused_as_data_folder(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StartupError, match="is not a folder"):
        await claim_data_folder(disk, f"{tmp_path}/file", STANDALONE_FOLDER)
    with pytest.raises(StartupError, match="cannot be used"):
        await claim_data_folder(disk, f"{tmp_path}/file/below", STANDALONE_FOLDER)


def modes(folder: Path, wide: dict[str, int]) -> None:
    for name, mode in wide.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name).chmod(mode)


def test_folders_that_other_users_may_read_are_reported_once_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modes(tmp_path, {"wide": 0o755, "wide/current": 0o755, "volume": 0o700, "volume/current": 0o711})
    warn_of_open_folders([f"{tmp_path}/wide", f"{tmp_path}/volume", f"{tmp_path}/absent"])
    named = f"{tmp_path}/volume/current {tmp_path}/wide"
    assert caplog.messages == [f"every user of this machine may read below {named}; run: chmod 700 {named}"]
    assert (tmp_path / "wide").stat().st_mode & 0o777 == 0o755, "the mode is the owner's to change"


def test_a_group_of_a_volume_may_have_access(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    modes(tmp_path, {"volume": 0o2770, "volume/current": 0o2770})
    warn_of_open_folders([f"{tmp_path}/volume"])
    assert caplog.messages == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder away")
def test_the_root_of_a_volume_that_is_not_ours_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    modes(tmp_path, {"volume": 0o2775})
    os.chown(tmp_path / "volume", 10001, 10001)
    warn_of_open_folders([f"{tmp_path}/volume"])
    assert caplog.messages == []
