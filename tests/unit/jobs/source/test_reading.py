"""Errors of a task for entries that it cannot read."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("pyspark")

from quire_bookie.errors import BookieUnavailableError
from quire_jobs.errors import SourceUnavailableError
from quire_jobs.source import reading
from quire_jobs.source.filters import Filters
from quire_jobs.source.options import SourceOptions, parse_options
from quire_jobs.source.spans import LogName, Span, Split

OPTIONS = parse_options({"metadata": "etcd://here:1", "ledgers": "1,2", "mode": "entries"})
SPLIT = Split(LogName("", None, None), [Span(2, 0, 9, 100)], [Span(1, 0, 9, 100)])


class Silent:
    """A cluster whose bookies do not respond."""

    async def open_ledger(self, ledger_id: int) -> Any:
        """Raise BookieUnavailableError."""
        raise BookieUnavailableError(f"ledger {ledger_id}: no bookie responds")


@asynccontextmanager
async def silent(_where: Any) -> AsyncIterator[Any]:
    """Replaces `task_cluster`."""
    yield Silent()


def look_back(options: SourceOptions, split: Split) -> Iterator[Any]:
    """Read the entries before the split, as for the beginning of a chunked message."""
    return reading._before(options, split)


def read(options: SourceOptions, split: Split) -> Iterator[Any]:
    """Read the split."""
    return reading.read_split(options, Filters(), split)


@pytest.mark.parametrize(("work", "ledger"), [(read, 2), (look_back, 1)])
def test_silent_bookies_raise_source_unavailable(
    work: Callable[[SourceOptions, Split], Iterator[Any]], ledger: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "task_cluster", silent)
    with pytest.raises(SourceUnavailableError, match=f"quire source: ledger {ledger}: no bookie responds"):
        list(work(OPTIONS, SPLIT))
