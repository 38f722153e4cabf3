"""`quire doctor` on this host."""

import json
from pathlib import Path

import pytest

from quire_bookie.cli.main import run


def test_it_checks_each_folder_and_the_host(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(tmp_path), str(tmp_path / "not" / "yet")]
    code = run(["doctor", "--data", folders[0], "--data", folders[1], "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    checks = [one["check"] for one in found]
    assert checks.count(f"space of {tmp_path}") == 2, "a folder that does not exist is checked where it will be created"
    assert {"kernel", "swapping", "open files", "clock"} <= set(checks)
    assert code == int(any(one["verdict"] == "failed" for one in found))
    assert all(one["advice"] for one in found if one["verdict"] in ("warning", "failed"))
    assert list(tmp_path.iterdir()) == []


def test_a_metadata_store_that_does_not_answer_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--data", str(tmp_path), "--metadata", "etcd://127.0.0.1:1", "-o", "json"]) == 1
    last = json.loads(capsys.readouterr().out)[-1]
    assert (last["check"], last["verdict"]) == ("metadata at etcd://127.0.0.1:1", "failed")
    assert "etcd" in last["advice"]
