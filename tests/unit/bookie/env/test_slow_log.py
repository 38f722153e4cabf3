"""The log of slow operations: one structured line each, at most some a second, and the number of the others."""

import asyncio
import json
import logging

import pytest

from quire_bookie.cli.process import JsonLines
from quire_bookie.env.slow_log import SlowLog
from quire_bookie.limits import SLOW_LINES_PER_S
from quire_bookie.settings.slow import SlowSettings
from tests.sim.loop import SimLoop


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines so far."""
    return [record.getMessage() for record in caplog.records if record.name == "quire.slow"]


async def test_a_line_names_the_operation_its_duration_and_its_parts(caplog: pytest.LogCaptureFixture) -> None:
    SlowLog().note("add", 1.5, {"ledger": 7, "client": "a b", "journal_s": 1.25, "error": ""})
    assert lines(caplog) == ['operation=add took_ms=1500.0 ledger=7 client="a b" journal_ms=1250.0 error=""']


async def test_the_json_log_has_the_fields_as_an_object(caplog: pytest.LogCaptureFixture) -> None:
    SlowLog().note("read", 2.0, {"ledger": 7})
    (record,) = caplog.records
    assert json.loads(JsonLines().format(record))["event"] == {"operation": "read", "took_ms": 2000.0, "ledger": 7}


def test_too_many_slow_operations_are_counted_instead(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> SlowLog:
        log = SlowLog()
        for _ in range(SLOW_LINES_PER_S + 100):
            log.note("add", 1.0, {})
        assert len(lines(caplog)) == SLOW_LINES_PER_S
        await asyncio.sleep(1.0)
        log.note("read", 1.0, {})
        log.note("read", 1.0, {})
        return log

    loop = SimLoop(1)
    try:
        log = loop.run_until_complete(scenario())
    finally:
        loop.close()
    assert lines(caplog)[SLOW_LINES_PER_S:] == [
        "operation=read took_ms=1000.0 suppressed=100",
        "operation=read took_ms=1000.0",
    ]
    assert (log.counts, log.suppressed) == ({"add": SLOW_LINES_PER_S + 100, "read": 2}, 100)


@pytest.mark.parametrize(("setting_s", "slow"), [(0.0, False), (1.0, True), (3.0, False)])
def test_zero_turns_it_off(setting_s: float, slow: bool) -> None:
    assert (SlowSettings(setting_s).after_s <= 2.0) is slow


def test_lines_are_warnings_of_their_own_logger() -> None:
    assert logging.getLogger("quire.slow").isEnabledFor(logging.WARNING)
