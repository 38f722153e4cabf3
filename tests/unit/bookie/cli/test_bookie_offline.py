"""The inspectors, the scrub and the rebuild on the folders of a real bookie that was stopped."""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.cli.commands import EXIT_FAILED, EXIT_USAGE
from quire_bookie.cli.main import run
from quire_bookie.env.chance import SystemChance
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.limits import MIB
from quire_bookie.metadata.local.store import LocalMetadataStore
from quire_bookie.model import LedgerId
from quire_bookie.server import BookieSettings, start_bookie
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from tests.support.roomy_disk import NEVER_FULL
from tests.unit.bookie.storage.store import body_of, run_of

KEY = b"k" * 20
IDS = {7: [*range(300), *range(400, 410)], 8: list(range(0, 60, 3))}


async def fill(folder: Path) -> None:
    """Run a bookie with two ledgers, one of them fenced, and stop it."""
    disk = LocalDisk()
    metadata = await LocalMetadataStore.open(f"{folder}/metadata")
    settings = BookieSettings(
        data_dir=f"{folder}/bookie",
        disks=DiskRules(threshold=NEVER_FULL),
        listen="127.0.0.1",
        port=0,
        journal=JournalSettings(file_bytes=16 * MIB, group_bytes_max=6 * MIB, reserved_bytes=0),
    )
    running = await start_bookie(settings, metadata=metadata, disk=disk, clock=SystemClock(), chance=SystemChance())
    durable = asyncio.Event()
    for ledger, ids in IDS.items():
        await running.storage.load_ledger(LedgerId(ledger))
        info = running.storage.create_ledger(LedgerId(ledger), KEY)
        running.journal.append_master_key(LedgerId(ledger), KEY, None)
        for entry in ids:
            one = run_of(ledger, entry, [body_of(ledger, entry)])
            running.storage.put(info, one)
            running.journal.append_run(one, None)
    running.storage.fence(info)
    running.journal.append_fence(LedgerId(8), lambda error: durable.set())
    await durable.wait()
    await running.stop()
    await metadata.close()
    disk.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    asyncio.run(fill(folder))
    return folder


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled / "bookie", tmp_path / "bookie")
    return tmp_path / "bookie"


def look(capsys: pytest.CaptureFixture[str], data: Path, *arguments: str, code: int = 0) -> dict[str, list[Any]]:
    assert run(["bookie", *arguments, "--data", str(data), "-o", "json"]) == code
    found: dict[str, list[Any]] = json.loads(capsys.readouterr().out)
    return found


def bytes_of(data: Path) -> dict[str, str]:
    return {str(path): hashlib.sha1(path.read_bytes()).hexdigest() for path in data.rglob("*") if path.is_file()}


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def test_inspection_changes_no_byte_and_finds_everything(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = bytes_of(data)
    files = next(iter(look(capsys, data, "inspect-journal").values()))
    assert any(file["generation"] is not None and not file["damaged"] for file in files)
    logs = look(capsys, data, "inspect-log", "--ledger", "7")
    assert sum(log["entries"] for log in logs["entry logs"]) == sum(map(len, IDS.values()))
    assert sorted(row["entry"] for row in logs["records of ledger 7"] if row["entry"] != "state") == IDS[7]
    index = {row["what"]: row["value"] for row in look(capsys, data, "inspect-index")["index"]}
    assert (index["ledgers"], index["fenced"], index["entries"], index["limbo"]) == (2, 1, 330, "no")
    ledgers = look(capsys, data, "ledger")["ledgers"]
    assert [(row["ledger"], row["fenced"]) for row in ledgers] == [(7, False), (8, True)]
    one = look(capsys, data, "ledger", "7")
    assert [(row["first"], row["last"]) for row in one["entries held"]] == [(0, 299), (400, 409)]
    assert look(capsys, data, "scrub")["damage"] == []
    assert KEY.hex() not in json.dumps([logs, index, ledgers, one])
    after = bytes_of(data)
    assert {path for path in before if before[path] != after.get(path)} == set()


def test_default_output_is_tables(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("inspect-journal", "inspect-log", "inspect-index", "ledger", "scrub"):
        assert run(["bookie", command, "--data", str(data)]) == 0
        shown = capsys.readouterr().out
        assert shown.count("\n") >= 3 and "{" not in shown, command


def test_a_scrub_reports_damage_by_ledger_and_ids_and_fails(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = next((data / "ledgers").glob("*.qlog"))
    flip(log, log.read_bytes().index(body_of(7, 123)) + 40)
    found = look(capsys, data, "scrub", code=EXIT_FAILED)["damage"]
    assert [(row["ledger"], row["first"], row["last"]) for row in found] == [(7, 123, 123)]
    gaps = look(capsys, data, "inspect-log")["no intact record"]
    assert [gap["suspect"] for gap in gaps] == ["ledger 7 entry 123"]


def test_a_missing_log_is_found_by_the_scrub(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next((data / "ledgers").glob("*.qlog")).unlink()
    found = look(capsys, data, "scrub", code=EXIT_FAILED)["damage"]
    assert any("missing" in row["what"] for row in found)
    assert {row["ledger"] for row in found} >= {7, 8}


def test_damage_in_the_journal_is_reported(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = data / "journal" / "last-mark"
    journal = sorted((data / "journal").glob("journal-*.log"))[0]
    offset = int.from_bytes(mark.read_bytes()[40:48], "little")
    flip(mark, 41)
    assert run(["bookie", "inspect-journal", "--data", str(data)]) == EXIT_FAILED
    assert "last-mark" in capsys.readouterr().err
    assert offset <= journal.stat().st_size


def test_a_lost_index_is_reported_with_a_remedy_that_works(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(data / "ledgers" / "index")
    for command in ("inspect-index", "ledger", "scrub"):
        assert run(["bookie", command, "--data", str(data)]) == EXIT_FAILED
        assert "quire bookie rebuild-index" in capsys.readouterr().err
    rebuilt = look(capsys, data, "rebuild-index")["rebuilt"][0]
    assert (rebuilt["ledgers"], rebuilt["entries"], rebuilt["limbo"]) == (2, 330, False)
    assert look(capsys, data, "scrub")["damage"] == []
    assert [row["fenced"] for row in look(capsys, data, "ledger")["ledgers"]] == [False, True]


def test_a_running_bookie_a_java_folder_and_an_empty_one_are_refused_in_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = LocalDisk()
    lock = disk.lock_dir(f"{data}/ledgers/current")
    assert run(["bookie", "scrub", "--data", str(data)]) == EXIT_FAILED
    assert "stop the bookie first" in capsys.readouterr().err
    lock.release()
    disk.close()
    java = tmp_path / "java" / "journal" / "current"
    java.mkdir(parents=True)
    (java / "18f.txn").write_bytes(b"BKLG")
    assert run(["bookie", "inspect-journal", "--data", str(tmp_path / "java")]) == EXIT_FAILED
    assert "Java" in capsys.readouterr().err
    assert run(["bookie", "ledger", "--data", str(tmp_path / "nothing")]) == EXIT_FAILED
    assert "no bookie's data" in capsys.readouterr().err


def test_missing_objects_are_one_line(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bookie", "ledger", "99", "--data", str(data)]) == EXIT_FAILED
    assert "ledger 99 is not in the index" in capsys.readouterr().err
    for log in ("99", "zz"):
        assert run(["bookie", "inspect-log", "--log", log, "--data", str(data)]) == EXIT_USAGE
        assert f"--log {log}" in capsys.readouterr().err
