"""Positions of a stream against the present state of its log. tests/integration/jobs reads real topics."""

from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from quire_bookie.errors import MetadataUnavailableError
from quire_broker.managed_ledger.position import Position
from quire_jobs.errors import JobOptionsError
from quire_jobs.source import stream
from quire_jobs.source.loop_thread import shared_loop
from quire_jobs.source.offsets import Limit
from quire_jobs.source.options import parse_options
from quire_jobs.source.spans import Log, LogName, Span

NAME = LogName("t/n/persistent/x", "persistent://t/n/x", -1)


class OneLog:
    """A driver whose cluster has one log."""

    def __init__(self, *ledgers: tuple[int, int]) -> None:
        """`ledgers`: id and number of entries of each."""
        spans = tuple(Span(ledger, 0, count - 1, count, 1) for ledger, count in ledgers if count)
        self.log = Log(NAME, spans, tuple(ledger for ledger, _ in ledgers))
        self.loop = self
        self.cluster, self.brokers = SimpleNamespace(), object()

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return shared_loop().run(work)

    async def logs(self) -> list[Log]:
        return [self.log]


def reader(*ledgers: tuple[int, int], cursor: str = "") -> stream.StreamReader:
    options = {"metadata": "http://127.0.0.1:1", "topic": "persistent://t/n/x"}
    made = stream.StreamReader(parse_options(options | ({"cursor": cursor} if cursor else {})))
    made._driver = OneLog(*ledgers)  # type: ignore[assignment]
    return made


@pytest.mark.parametrize(
    ("position", "kept"),
    [
        (Position(-1, -1), Position(-1, -1)),
        (Position(5, 9), Position(12, -1)),  # trimmed once it was read
        (Position(12, 3), Position(12, 3)),
        (Position(12, 9), Position(30, -1)),  # read to its end: it may be trimmed at any moment
        (Position(30, 4), Position(30, 4)),
    ],
)
def test_a_batch_begins_right_before_the_next_entry(position: Position, kept: Position) -> None:
    assert reader((12, 10), (20, 0), (30, 5)).kept({NAME.name: position}) == {NAME.name: kept}


def test_a_position_behind_all_ledgers_of_the_log_is_refused() -> None:
    """It is of another cluster: nothing would be read until the ids of its ledgers are that high."""
    one = reader((3, 10), (4, 5))
    with pytest.raises(JobOptionsError, match="ends in ledger 4, but 12:199 was read before"):
        one.end_behind({NAME.name: Position(12, 199)}, Limit())
    assert one.end_behind({NAME.name: Position(4, 4)}, Limit()) == {NAME.name: Position(4, 4)}
    assert reader().end_behind({NAME.name: Position(12, 199)}, Limit()) == {NAME.name: Position(12, 199)}


def test_a_commit_survives_that_the_metadata_are_unavailable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unavailable(*_: object) -> None:
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(stream, "logs_named", unavailable)
    reader((3, 10), cursor="job").commit({NAME.name: "3:9"})
    assert "could not advance the cursor job" in caplog.text
