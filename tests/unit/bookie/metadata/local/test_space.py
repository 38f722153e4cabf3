"""The reserve of the embedded metadata store."""

import errno
import os
from pathlib import Path

import pytest

from quire_bookie.errors import StartupError
from quire_bookie.limits import METADATA_RESERVE_FILE_BYTES, METADATA_RESERVE_FILES
from quire_bookie.metadata.local import opening, space
from quire_bookie.metadata.local.inspection import Inspection, inspect_database
from quire_bookie.metadata.local.space import MetadataReserve


def test_commits_fill_it_and_free_one_file_each_time_that_there_is_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reserve.0").write_bytes(b"cut by a crash")
    reserve = MetadataReserve(tmp_path)
    for _ in range(METADATA_RESERVE_FILES + 1):
        reserve.before_commit()
    files = sorted(tmp_path.iterdir())
    assert len(files) == METADATA_RESERVE_FILES
    assert {file.stat().st_size for file in files} == {METADATA_RESERVE_FILE_BYTES}
    monkeypatch.setattr(space, "METADATA_COMMIT_BYTES", 1 << 60)  # more than any disk has free
    again = MetadataReserve(tmp_path)
    again.before_commit()
    assert len(list(tmp_path.iterdir())) == METADATA_RESERVE_FILES - 1
    for _ in range(2 * METADATA_RESERVE_FILES):
        again.before_commit()
    assert list(tmp_path.iterdir()) == []


def test_a_start_that_finds_no_space_uses_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = MetadataReserve(tmp_path)
    for _ in range(METADATA_RESERVE_FILES):
        reserve.before_commit()
    calls: list[Path] = []

    def full(folder: Path) -> Inspection:
        calls.append(folder)
        if len(calls) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return inspect_database(folder)

    monkeypatch.setattr(opening, "inspect_database", full)
    opening.open_database(tmp_path).close()
    assert len(list(tmp_path.glob("reserve.*"))) == METADATA_RESERVE_FILES - 2
    calls.clear()
    for path in tmp_path.glob("reserve.*"):
        path.unlink()
    with pytest.raises(StartupError, match="No space left"):
        opening.open_database(tmp_path)
