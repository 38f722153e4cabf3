"""Slow reads for subscriptions: one line, with the wait for memory and the time of the ledger."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire_bookie.env.slow_log import SlowLog
from quire_broker.managed_ledger.ledger_port import Entry
from quire_broker.managed_ledger.reading.slow_reads import SlowReads

ENTRIES = cast(list[Entry], [SimpleNamespace(payload=b"abc"), SimpleNamespace(payload=b"d")])


async def test_a_slow_read_is_logged_and_a_quick_one_is_not(caplog: pytest.LogCaptureFixture) -> None:
    reads = SlowReads(SlowLog(), "public/default/persistent/t")
    now_s = asyncio.get_running_loop().time()
    reads.done(7, 3, now_s, now_s, ENTRIES)
    assert not caplog.records
    reads.done(7, 3, now_s - 3.0, now_s - 2.0, ENTRIES)
    (record,) = caplog.records
    event: dict[str, Any] = vars(record)["event"]
    assert (event["ledger"], event["first"], event["entries"], event["bytes"]) == (7, 3, 2, 4)
    assert event["memory_ms"] == 1000.0 and event["ledger_ms"] >= 2000.0
