"""`quire bookie info` and `read-only` on the folders of a bookie that ran, and while it runs."""

import asyncio
import json
from pathlib import Path

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
from quire_bookie.server.process import BookieState
from quire_bookie.settings.disks import DiskRules
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.storage.ledgers.limbo import LIMBO_NAME, Limbo, encode_limbo
from tests.support.roomy_disk import NEVER_FULL


async def run_once(folder: Path, during: object = None) -> tuple[str, BookieState]:
    """Start a bookie on real disks, call `during` in another thread while it runs, stop it; return its id and state."""
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
    state = running.state
    try:
        if callable(during):
            await asyncio.to_thread(during)
    finally:
        await running.stop()
        await metadata.close()
        disk.close()
    return str(running.bookie_id), state


def info(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert run(["bookie", "info", "--data", f"{folder}/bookie", "-o", "json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_stopped_bookies_folders_show_their_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bookie, _ = asyncio.run(run_once(tmp_path))
    found = info(tmp_path, capsys)
    assert found["bookie"] == bookie
    assert found["running"] is False
    assert found["read-only by operator"] is False
    assert found["in limbo"] == "no"
    assert str(found[f"{tmp_path}/bookie/journal"]).startswith("journal 0: ")


def test_a_running_bookie_is_detected_by_its_lock_and_not_written_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def look() -> None:
        assert info(tmp_path, capsys)["running"] is True
        assert run(["bookie", "read-only", "on", "--data", f"{tmp_path}/bookie"]) == EXIT_FAILED
        assert "--http" in capsys.readouterr().err

    asyncio.run(run_once(tmp_path, look))
    assert info(tmp_path, capsys)["read-only by operator"] is False


def test_a_request_to_a_stopped_bookie_holds_at_its_next_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(run_once(tmp_path))
    assert run(["bookie", "read-only", "on", "--data", f"{tmp_path}/bookie"]) == 0
    assert asyncio.run(run_once(tmp_path))[1] is BookieState.READ_ONLY
    assert run(["bookie", "read-only", "off", "--data", f"{tmp_path}/bookie"]) == 0
    assert asyncio.run(run_once(tmp_path))[1] is BookieState.WRITABLE
    assert "writable" in capsys.readouterr().out


def test_empty_folders_and_unknown_requests_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bookie", "info", "--data", str(tmp_path)]) == EXIT_FAILED
    assert "no bookie's data" in capsys.readouterr().err
    assert run(["bookie", "read-only", "maybe", "--data", str(tmp_path)]) == EXIT_USAGE
    assert "give on or off" in capsys.readouterr().err


def test_a_stopped_bookie_in_limbo_reports_up_to_which_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(run_once(tmp_path))
    record = tmp_path / "bookie" / "ledgers" / LIMBO_NAME
    limbo = Limbo().entered([LedgerId(25)])
    record.write_bytes(encode_limbo(limbo))
    assert info(tmp_path, capsys)["in limbo"] == "up to ledger 25"
    record.write_bytes(encode_limbo(limbo.ended()))
    assert info(tmp_path, capsys)["in limbo"] == "no longer"
    record.write_bytes(b"torn")
    assert "does not match its checksum" in str(info(tmp_path, capsys)["in limbo"])
