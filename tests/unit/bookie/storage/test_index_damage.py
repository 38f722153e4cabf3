"""A damaged RocksDB index: correct results or errors, never absence; and the remedy works."""

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import DamagedError, StartupError
from quire_bookie.storage.rebuilding.index_place import open_index, rebuild_in_place, summary
from tests.unit.bookie.storage.real_store import ENTRIES, LEDGERS, fill, place_of, read_all

ROOT = Path(__file__).resolve().parents[4]
ALL = LEDGERS * (ENTRIES + 1)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "ledgers"
    folder.mkdir()
    asyncio.run(fill(folder))
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled, tmp_path / "ledgers")
    return tmp_path / "ledgers"


def names(folder: Path, start: str = "") -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(start))


def damage(index: Path, seed: int) -> str:
    """Flip, zero, truncate or remove at random offsets of the index's files; return a description."""
    chance = random.Random(seed)
    files = sorted(path for path in index.iterdir() if path.suffix in (".sst", ".log") or "MANIFEST" in path.name)
    files = [path for path in [*files, index / "CURRENT"] if path.stat().st_size]
    path = chance.choice(files)
    data = bytearray(path.read_bytes())
    what = chance.choice(["flip", "flip", "zero", "cut", "remove"])
    if what == "remove":
        path.unlink()
    elif what == "cut":
        path.write_bytes(data[: chance.randrange(len(data))])
    else:
        start = chance.randrange(len(data))
        for at in range(start, min(len(data), start + (1 if what == "flip" else 4096))):
            data[at] = data[at] ^ (1 << chance.randrange(8)) if what == "flip" else 0
        path.write_bytes(data)
    return f"seed {seed}: {what} {path.name}"


def read_in_child(folder: Path) -> dict[str, object] | int:
    """Return the result of a separate process that reads, or the signal that ended it."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.unit.bookie.storage.real_store", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if child.returncode < 0:
        return child.returncode
    assert child.returncode == 0, child.stderr
    found: dict[str, object] = json.loads(child.stdout)
    return found


def check_damaged(folder: Path, seed: int) -> str:
    """Damage the index, read and check. Return the outcome."""
    what = damage(folder / "index", seed)
    found = read_in_child(folder)
    if isinstance(found, int):
        return f"{what}: signal {-found}"
    if "refused" in found:
        return f"{what}: refused: {found['refused']}"
    assert found["wrong"] == [], what
    return f"{what}: {found['right']} right, {found['errors']} errors"


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_damage_to_the_index_is_an_error_or_harmless(folder: Path, seed: int) -> None:
    outcome = check_damaged(folder, seed)
    if "refused" in outcome:
        assert "rebuild-index" in outcome, outcome


async def test_an_intact_index_reads_everything(folder: Path) -> None:
    assert await read_all(folder) == {"right": ALL, "errors": 0, "wrong": []}


@pytest.mark.parametrize("lost", ["folder", "files", "manifest"])
async def test_a_lost_index_is_refused_with_the_remedy_and_rebuilt_in_place(folder: Path, lost: str) -> None:
    index = folder / "index"
    if lost == "folder":
        shutil.rmtree(index)
    else:
        for path in index.iterdir():
            if lost == "files" or "MANIFEST" in path.name:
                path.unlink()
    disk = LocalDisk()
    with pytest.raises((DamagedError, StartupError), match="quire bookie rebuild-index"):
        await open_index(disk, place_of(folder))
    seen: list[tuple[int, int]] = []
    report = await rebuild_in_place(disk, place_of(folder), progress=lambda done, total: seen.append((done, total)))
    assert report.ledgers == LEDGERS and report.entries == LEDGERS * ENTRIES and not report.damage
    assert f"{LEDGERS} ledgers" in summary(report) and seen
    assert names(folder, "index") == ["index", "index.proof"]
    disk.close()
    assert await read_all(folder) == {"right": ALL, "errors": 0, "wrong": []}


async def test_with_the_setting_a_start_rebuilds_the_index(folder: Path) -> None:
    (folder / "index" / "CURRENT").write_bytes(b"nonsense")
    assert await read_all(folder, rebuild_on_damage=True) == {"right": ALL, "errors": 0, "wrong": []}


async def test_a_refused_rebuild_changes_nothing(folder: Path) -> None:
    log = folder / f"{1:016x}.qlog"
    log.rename(folder / "aside")
    disk = LocalDisk()
    before = names(folder / "index")
    with pytest.raises(StartupError, match="--accept-limbo"):
        await rebuild_in_place(disk, place_of(folder))
    disk.close()
    assert names(folder / "index") == before
    (folder / "aside").rename(log)
    assert (await read_all(folder))["right"] == ALL


async def test_after_a_start_that_died_while_opening_the_index_a_child_checks_it_first(folder: Path) -> None:
    marker = folder / "index.opening"
    marker.write_bytes(b"")
    assert (await read_all(folder))["right"] == ALL
    assert not marker.exists()
    marker.write_bytes(b"")
    for path in (folder / "index").glob("*.sst"):
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
    found = await read_all(folder)
    assert "rebuild-index" in str(found.get("refused"))


async def test_a_child_that_hangs_on_the_index_is_killed_and_the_start_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire_bookie.limits.INDEX_CHECK_SILENCE_S", 2.0)
    (folder / "index.opening").write_bytes(b"")
    pipe = folder / "index" / "999999.log"
    os.mkfifo(pipe)  # opening a pipe without a writer does not return
    found = await read_all(folder)
    assert "made no progress for 2 s" in str(found.get("refused")) and "rebuild-index" in str(found["refused"])
    pipe.unlink()
    monkeypatch.undo()
    assert (await read_all(folder))["right"] == ALL


def test_a_child_exits_when_its_parent_is_gone(folder: Path) -> None:
    request = {
        "do": "rebuild",
        "index": str(folder / "index.new"),
        "directories": [str(folder)],
        "home": str(folder),
        "cache_bytes": 8 << 20,
        "accept_limbo": False,
        "limbo_bounds": [],
    }
    child = subprocess.run(
        [sys.executable, "-m", "quire_bookie.storage.rebuilding.rebuild_child"],
        input=json.dumps(request).encode() + b"\n",  # and then the end of stdin
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == 3 and b"done" not in child.stdout
