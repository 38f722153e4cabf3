"""Whose folder it is, on a real disk: names only."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire_bookie.cli.data_folder import BOOKIE_FOLDER, STANDALONE_FOLDER, claim_data_folder
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import StartupError


@pytest.fixture
def disk() -> Iterator[LocalDisk]:
    found = LocalDisk()
    yield found
    found.close()


async def test_an_absent_folder_is_made_and_locked(disk: LocalDisk, tmp_path: Path) -> None:
    lock = await claim_data_folder(disk, f"{tmp_path}/a/b", STANDALONE_FOLDER)
    with pytest.raises(StartupError, match="in use by another process"):
        await claim_data_folder(disk, f"{tmp_path}/a/b", STANDALONE_FOLDER)
    lock.release()
    (await claim_data_folder(disk, f"{tmp_path}/a/b", STANDALONE_FOLDER)).release()


@pytest.mark.parametrize("names", [["metadata", "bookie-0", "standalone.json"], ["lost+found"], [".hidden"], []])
async def test_our_own_folder_and_an_empty_volume_are_taken(disk: LocalDisk, tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    (await claim_data_folder(disk, str(tmp_path), STANDALONE_FOLDER)).release()


@pytest.mark.parametrize(
    ("names", "ours", "reason"),
    [
        (["notes.txt"], STANDALONE_FOLDER, "Quire did not make"),
        (["current"], STANDALONE_FOLDER, "Quire did not make"),
        (["journal", "ledgers"], STANDALONE_FOLDER, "quire bookie start"),
        (["bookie-0"], BOOKIE_FOLDER, "quire standalone"),
    ],
)
async def test_a_foreign_folder_is_refused_and_stays_as_it_is(
    disk: LocalDisk, tmp_path: Path, names: list[str], ours: re.Pattern[str], reason: str
) -> None:
    for name in names:
        (tmp_path / name).mkdir()
    with pytest.raises(StartupError, match=reason):
        await claim_data_folder(disk, str(tmp_path), ours)
    assert sorted(os.listdir(tmp_path)) == sorted(names)


async def test_a_file_is_no_data_folder(disk: LocalDisk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StartupError, match="is not a folder"):
        await claim_data_folder(disk, f"{tmp_path}/file", STANDALONE_FOLDER)
    with pytest.raises(StartupError, match="cannot be used"):
        await claim_data_folder(disk, f"{tmp_path}/file/below", STANDALONE_FOLDER)
