"""Commits of the job `table` and its subscription. tests/integration/jobs/test_lake.py runs it."""

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from quire_broker.managed_ledger.position import Position
from quire_jobs.lake import following
from quire_jobs.lake.following import Follower, table_layout
from quire_jobs.source.offsets import Limit
from quire_jobs.source.options import Mode
from quire_jobs.tables import TableTarget, Written
from quire_jobs.tables.marks import POSITIONS

NAME = "t/n/persistent/x"
TARGET = TableTarget.parse("iceberg", "lake.shop.orders")


class Reader:
    """A topic with entries 0 to 999 in ledger 3."""

    def __init__(self) -> None:
        self.moved: list[dict[str, str]] = []

    def ends(self) -> dict[str, Position]:
        return {NAME: Position(3, 999)}

    def end_behind(self, *_: object) -> dict[str, Position]:
        return self.ends()

    def commit(self, end: dict[str, str]) -> None:
        self.moved.append(end)


class Marks:
    """A table at a position."""

    def __init__(self) -> None:
        self.at = "3:99"

    def marks(self) -> dict[str, str]:
        return {POSITIONS: json.dumps({NAME: self.at, "t/n/persistent/other": "9:9"})}


@pytest.mark.parametrize(
    ("reached", "repeated", "moved"),
    [
        ("3:999", False, [{NAME: "3:999"}]),
        ("3:499", False, [{NAME: "3:499"}]),  # the outcome was unknown, and another run's commit was found
        ("3:499", True, []),
    ],
)
def test_the_subscription_moves_to_where_the_table_is(
    monkeypatch: pytest.MonkeyPatch, reached: str, repeated: bool, moved: list[dict[str, str]]
) -> None:
    table, reader = Marks(), Reader()

    def write(*_: Any, **__: Any) -> Written:
        table.at = reached
        return Written(repeated)

    monkeypatch.setattr(following, "open_table", lambda _: table)
    monkeypatch.setattr(following, "write_frame", write)
    monkeypatch.setattr(Follower, "_frame", lambda *_: None)
    where = {"metadata": "http://127.0.0.1:1", "http": "http://127.0.0.1:1"}
    layout = table_layout(Mode.MESSAGES, "hour", 1 << 20)
    follower = Follower(None, where, "persistent://t/n/x", Mode.MESSAGES, TARGET, layout)  # type: ignore[arg-type]
    follower._reader = reader  # type: ignore[assignment]
    assert follower.step(Limit()).written.repeated is repeated
    assert reader.moved == moved
