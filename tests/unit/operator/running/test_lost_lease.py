"""A lost lease stops all reconciliation, and the process waits for the lease again; other errors end it."""

from typing import Any

import pytest

from quire_operator import main as command
from quire_operator.errors import KubeError
from quire_operator.running import process
from quire_operator.running.lease import LeaseLostError
from quire_operator.running.process import OperatorSettings, WatchesEndedError

WORDS = ["run", "--bookie-image", "b", "--broker-image", "c", "--namespace", "here"]


def test_a_process_that_lost_the_lease_waits_for_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[OperatorSettings] = []

    async def run(settings: OperatorSettings) -> None:
        runs.append(settings)
        if len(runs) < 3:
            raise LeaseLostError("the lease was not renewed for 8 s")

    monkeypatch.setattr(command, "run_operator", run)
    assert command.main(WORDS) == 0
    assert len(runs) == 3


def test_a_process_whose_watches_ended_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[OperatorSettings] = []

    async def run(settings: OperatorSettings) -> None:
        runs.append(settings)
        if len(runs) < 2:
            raise WatchesEndedError("the watches ended: forbidden")

    monkeypatch.setattr(command, "run_operator", run)
    assert command.main(WORDS) == 0
    assert len(runs) == 2


def test_another_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(settings: OperatorSettings) -> None:
        raise KubeError(403, "leases may not be read")

    monkeypatch.setattr(command, "run_operator", run)
    assert command.main(WORDS) == 1
    assert "leases may not be read" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "watched"), [("", None), ("prod", "prod")])
def test_an_empty_namespace_to_watch_means_all(
    monkeypatch: pytest.MonkeyPatch, given: str, watched: str | None
) -> None:
    runs: list[OperatorSettings] = []

    async def run(settings: OperatorSettings) -> None:
        runs.append(settings)

    monkeypatch.setattr(command, "run_operator", run)
    assert command.main([*WORDS, f"--watch-namespace={given}"]) == 0
    assert [settings.watch_namespace for settings in runs] == [watched]


def test_an_error_is_found_in_nested_groups() -> None:
    lost = LeaseLostError("gone")
    inner: Any = ExceptionGroup("inner", [lost])
    assert process._first(ExceptionGroup("outer", [inner])) is lost
