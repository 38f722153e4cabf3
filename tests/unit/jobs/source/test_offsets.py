"""The end of a micro-batch."""

import pytest

pytest.importorskip("pyspark")

from hypothesis import given
from hypothesis import strategies as st

from quire_broker.managed_ledger.position import EARLIEST, Position
from quire_jobs.errors import JobOptionsError
from quire_jobs.source.offsets import Limit, advanced, decode, encode
from quire_jobs.source.spans import Log, LogName, Span


def log_of(name: str, *counts: int) -> Log:
    spans = tuple(Span(index, 0, count - 1, count * 10, 1) for index, count in enumerate(counts) if count)
    return Log(LogName(name, name, -1), spans, tuple(range(len(counts))))


def test_offsets_come_back_from_the_checkpoint() -> None:
    offset = {"a": Position(3, 7), "b": EARLIEST}
    assert encode(offset) == {"a": "3:7", "b": "-1:-1"}
    assert decode(encode(offset)) == offset
    for foreign in ({"a": 5}, {"a": "x:y"}, {"a": "1:2:3"}):
        with pytest.raises(JobOptionsError, match="use a new checkpointLocation"):
            decode(foreign)  # type: ignore[arg-type]


def test_without_a_limit_everything_is_taken() -> None:
    assert advanced({}, [log_of("a", 5, 3), log_of("b", 1)], Limit()) == {"a": Position(1, 2), "b": Position(0, 0)}


def test_a_limit_is_shared_and_an_unused_share_goes_to_the_other_log() -> None:
    found = advanced({}, [log_of("a", 100), log_of("b", 2)], Limit(entries=20))
    assert found == {"a": Position(0, 17), "b": Position(0, 1)}
    assert advanced({}, [log_of("a", 100)], Limit(size_bytes=55)) == {"a": Position(0, 4)}


def test_one_entry_larger_than_the_limit_is_still_read() -> None:
    assert advanced({}, [log_of("a", 3), log_of("b", 3)], Limit(size_bytes=1)) == {"b": Position(0, 0)}


def test_logs_without_new_entries_keep_their_position() -> None:
    start = {"a": Position(9, 9), "gone": Position(1, 1)}
    assert advanced(start, [log_of("a")], Limit(entries=5)) == start


@given(
    st.lists(st.lists(st.integers(0, 20), max_size=4), min_size=1, max_size=4),
    st.one_of(st.none(), st.integers(1, 60)),
    st.one_of(st.none(), st.integers(1, 600)),
)
def test_batch_by_batch_everything_is_read_within_the_limits(
    counts: list[list[int]], entries: int | None, size_bytes: int | None
) -> None:
    logs = [log_of(str(index), *each) for index, each in enumerate(counts)]
    offset: dict[str, Position] = {}
    for _ in range(sum(map(sum, counts)) + 1):
        rest = []
        for log in logs:
            after = offset.get(log.name.name, EARLIEST)
            rest.append(log.between(Position(after.ledger_id, after.entry_id + 1), Position(99, 99)))
        if not any(log.entries for log in rest):
            break
        end = advanced(offset, rest, Limit(entries, size_bytes))
        taken = [log.between(Position(0, 0), end.get(log.name.name, EARLIEST)) for log in rest]
        count = sum(log.entries for log in taken)
        assert count >= 1
        assert entries is None or count <= entries
        assert size_bytes is None or count <= max(1, size_bytes // 10)
        assert all(end[name] >= position for name, position in offset.items())
        offset = end
    assert offset == {log.name.name: log.last for log in logs if log.last is not None}
