"""The ledgers that a table still needs: offloaded, not in it, consecutive ones together."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.offload_context import OffloadContext
from quire_broker.managed_ledger.position import Position
from quire_broker.names import TopicName, parse_topic
from quire_jobs.errors import DataLossError, JobOptionsError, QuireJobError, SourceUnavailableError, UndecodableError
from quire_jobs.job import Problem
from quire_jobs.main.shown_progress import LineProgress
from quire_jobs.offload import message_table
from quire_jobs.offload.message_table import Due, TableOutcome, add_messages, bounds_of, due, message_layout
from quire_jobs.source.bounds import check_positions, start_of
from quire_jobs.source.options import parse_options
from quire_jobs.source.spans import Log, LogName, Span
from quire_jobs.tables import TableTarget
from quire_jobs.tables.marks import LedgerRange

TOPIC = parse_topic("t")
NAME = TOPIC.ledger_name


def offloaded_record(number: int, entries: int, size_bytes: int) -> LedgerRecord:
    context = OffloadContext("0a1b2c3d-4e5f-4789-8abc-def012345678", complete=True)
    return LedgerRecord(number, entries, size_bytes, 1, offload=context)


def plan(
    records: list[LedgerRecord], marks: str = "", ids: frozenset[int] = frozenset(), most: int = 1000
) -> list[Due]:
    return due(TOPIC, records, {f"ledgers.{NAME}": marks}, ids, most)


def ranges(found: list[Due]) -> list[tuple[int, int, int | None]]:
    return [(each.mark.first, each.mark.last, each.mark.before) for each in found]


def test_consecutive_offloaded_ledgers_are_added_together_up_to_a_size() -> None:
    records = [offloaded_record(number, entries=10, size_bytes=400) for number in (3, 5, 8, 9)]
    found = plan([*records, replace(records[0], ledger_id=12, offload=None)])
    assert ranges(found) == [(3, 5, None), (8, 9, 5)]
    assert found[0] == Due(TOPIC, LedgerRange(NAME, 3, 5), 2, 800)
    assert ranges(plan(records, most=100)) == [(3, 3, None), (5, 5, 3), (8, 8, 5), (9, 9, 8)], "at least one each"


def test_ledgers_in_the_table_or_not_offloaded_are_skipped() -> None:
    records = [offloaded_record(number, entries=10, size_bytes=1) for number in range(1, 8)]
    records[3] = replace(records[3], offload=None)
    assert ranges(plan(records, "1-2")) == [(3, 3, 2), (5, 7, 4)]
    assert ranges(plan(records, "1-7")) == []
    assert ranges(plan(records, ids=frozenset({2, 6}))) == [(2, 2, 1), (6, 6, 5)]


def test_empty_ledgers_only_count_between_others() -> None:
    empty = replace(offloaded_record(2, entries=0, size_bytes=0), offload=None)
    records = [offloaded_record(1, entries=1, size_bytes=1), empty, offloaded_record(3, entries=1, size_bytes=1)]
    assert ranges(plan(records)) == [(1, 3, None)]
    assert plan([empty]) == []


def test_a_ledger_that_was_trimmed_despite_the_cursor_fails_the_read() -> None:
    (each,) = plan([offloaded_record(number, entries=10, size_bytes=1) for number in (3, 5)])
    options = parse_options({"metadata": "etcd://h:1", "topic": str(TOPIC), **bounds_of(each)})
    name = LogName(NAME, str(TOPIC), -1)
    spans = (Span(3, 0, 9, 1), Span(5, 0, 9, 1))
    assert start_of(Log(name, spans, (3, 5)), options) == Position(3, 0)
    trimmed = Log(name, spans[1:], (5,))
    check_positions([trimmed], options)
    with pytest.raises(DataLossError, match="ledger 3, with position 3:0, was trimmed"):
        start_of(trimmed, options)


class Steps:
    """Records the steps for a table, without Spark; retention removes `taken` ledgers before the cursor exists."""

    def __init__(self, records: list[LedgerRecord], taken: int = 0) -> None:
        self.done: list[str] = []
        self.added: list[Due] = []
        self.failure: QuireJobError | None = None
        self.unread: QuireJobError | None = None
        self._records = records
        self._taken = taken

    def listed(self, topics: Sequence[TopicName]) -> Mapping[TopicName, Sequence[LedgerRecord]]:
        """Return the ledgers in the metadata."""
        self.done.append("list")
        return dict.fromkeys(topics, tuple(self._records))

    @contextmanager
    def held(self, options: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """Replaces the cursor."""
        del self._records[: self._taken]
        self.done.append("hold")
        try:
            yield dict(options)
        finally:
            self.done.append("release")

    def add(self, _spark: Any, _options: Any, each: Due, *_: Any) -> None:
        """Replaces Spark's read and write."""
        if self.unread is not None:
            raise self.unread
        self.added.append(each)

    def compact(self, *_: Any, **__: Any) -> Any:
        """Replaces Spark's merge."""
        assert self.failure is not None
        raise self.failure


def brought_up(steps: Steps, monkeypatch: pytest.MonkeyPatch, folder: Path, *, compacted: bool = False) -> TableOutcome:
    for name, there in (("held", steps.held), ("_add", steps.add), ("compact", steps.compact), ("register", id)):
        monkeypatch.setattr(message_table, name, there)
    target = TableTarget.parse("parquet", f"file://{folder}/t")
    layout = message_layout(4, 1 << 20)
    return add_messages(
        None,  # type: ignore[arg-type]  # Spark is not called
        {},
        "job",
        [TOPIC],
        steps.listed,
        target,
        layout,
        LineProgress(io.StringIO()),
        compacted=compacted,
    )


def test_a_ledger_trimmed_before_the_cursor_existed_is_not_marked_as_present(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = Steps([offloaded_record(number, entries=10, size_bytes=1) for number in (3, 5, 8)], taken=2)
    assert brought_up(steps, monkeypatch, tmp_path).problems == []
    assert steps.done == ["list", "hold", "list", "release"]
    assert ranges(steps.added) == [(8, 8, None)]


def test_a_topic_without_due_ledgers_gets_no_cursor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = Steps([])
    brought_up(steps, monkeypatch, tmp_path)
    assert steps.done == ["list"] and steps.added == []


@pytest.mark.parametrize(
    ("failure", "helps"),
    [
        (QuireJobError("this merge took longer"), True),
        (SourceUnavailableError("unavailable"), True),
        (JobOptionsError("no such catalog"), False),
    ],
)
def test_a_failed_merge_of_small_files_is_a_problem_and_the_rows_remain(
    failure: QuireJobError, helps: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = Steps([offloaded_record(3, entries=10, size_bytes=1)])
    steps.failure = failure
    outcome = brought_up(steps, monkeypatch, tmp_path, compacted=True)
    subject = f"small files of file://{tmp_path}/t"
    assert outcome.problems == [Problem(subject=subject, reason=str(failure), retry_helps=helps)]
    assert len(steps.added) == 1


AGAIN = "the next run lists the ledgers again and continues with the remaining ones"
LOST = "quire source: entries 4 to 9 of ledger 3 are gone"


@pytest.mark.parametrize(
    ("failure", "reason", "helps"),
    [
        (SourceUnavailableError("bookie b:3181 does not respond"), "bookie b:3181 does not respond", True),
        (DataLossError(f"{LOST}; hold them by jobId, or failOnDataLoss=false"), f"{LOST}; {AGAIN}", True),
        (DataLossError(LOST), f"{LOST}; {AGAIN}", True),
        (UndecodableError("entry 3:4 is not a message"), "entry 3:4 is not a message", False),
    ],
)
def test_rows_that_cannot_be_read_are_a_problem(
    failure: QuireJobError, reason: str, helps: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps = Steps([offloaded_record(3, entries=10, size_bytes=1)])
    steps.unread = failure
    outcome = brought_up(steps, monkeypatch, tmp_path, compacted=True)
    assert outcome.problems == [Problem(subject=f"table rows of {TOPIC}", reason=reason, retry_helps=helps)]
    assert steps.done[-1] == "release", "the cursor does not outlive the run"
