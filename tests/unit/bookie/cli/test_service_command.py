"""Every command that runs a service reads its settings, reports ignored keys, serves, and returns the exit code."""

import asyncio
import importlib
import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from quire_bookie.cli.main import run

SERVICES = {
    "bookie start": "quire_bookie.cli.serve_bookie:serve",
    "autorecovery": "quire_bookie.cli.serve_autorecovery:serve",
    "broker start": "quire_broker.cli.serving:serve_broker",
    "standalone": "quire_broker.cli.serving:serve_standalone",
}


@pytest.fixture(params=sorted(SERVICES))
def command(request: pytest.FixtureRequest) -> list[str]:
    return str(request.param).split()


def put_in_place(monkeypatch: pytest.MonkeyPatch, command: list[str], service: Any) -> None:
    module, _, name = SERVICES[" ".join(command)].partition(":")
    monkeypatch.setattr(importlib.import_module(module), name, service)


def test_settings_reach_the_service_and_its_code_the_shell(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    async def service(config: Any, stop: asyncio.Event) -> int:
        seen.append((config.metadata, config.metadata_session_timeout_ms, stop.is_set()))
        return 7

    put_in_place(monkeypatch, command, service)
    file = tmp_path / "of_java.conf"
    file.write_text("metadata_session_timeout_ms=12345\nsomethingOfJava=1\nmetadata_sesion_timeout_ms=2\n")
    with caplog.at_level(logging.WARNING):
        code = run([*command, "--config", str(file), "--set", "metadata=etcd://h:1", "--event-loop", "asyncio"])
    assert (code, seen) == (7, [("etcd://h:1", 12345, False)])
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: unknown to Quire, ignored: somethingOfJava, "
        "metadata_sesion_timeout_ms (did you mean 'metadata_session_timeout_ms'?)"
    ]


def test_a_signal_stops_the_service(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def service(_config: Any, stop: asyncio.Event) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        return 0

    put_in_place(monkeypatch, command, service)
    assert run([*command, "--event-loop", "asyncio"]) == 0


def test_a_wrong_setting_is_refused_before_anything_serves(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def service(_config: Any, _stop: asyncio.Event) -> int:
        raise AssertionError("it must not be called")

    put_in_place(monkeypatch, command, service)
    assert run([*command, "--set", "nothing=1"]) == 2
    assert "unknown setting 'nothing'" in capsys.readouterr().err


def test_a_standalone_reports_keys_of_bookies_that_it_does_not_have(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def service(_config: Any, _stop: asyncio.Event) -> int:
        return 0

    put_in_place(monkeypatch, command, service)
    file = tmp_path / "shared.conf"
    file.write_text("bookieMachine=m1\nmaxMessageSize=5242880\n")
    with caplog.at_level(logging.WARNING):
        assert run([*command, "--config", str(file), "--set", "metadata=etcd://h:1", "--event-loop", "asyncio"]) == 0
    expected = [f"{file}: no effect: bookieMachine: settings of other kinds of process, which this one does not have"]
    assert [record.getMessage() for record in caplog.records] == (expected if command == ["standalone"] else [])


@pytest.mark.parametrize("command", ["broker start", "standalone"])
def test_an_entry_filter_that_is_not_installed_is_refused_before_anything_is_opened(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    address = ["--set", "metadata=etcd://127.0.0.1:1"] if command == "broker start" else []
    assert run([*command.split(), *address, "--set", "entryFilterNames=typo", "--event-loop", "asyncio"]) == 2
    assert "entryFilterNames: Entry filter 'typo' not found" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
