"""The spans of adds and reads in a bookie: which entries have one, below which parent, and the trace in a slow line."""

from typing import Any

import pytest

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.tracing import Tracing, chosen_in
from quire_bookie.model import EntryId
from quire_bookie.server.requests.traced_adds import TracedAdds
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.settings.slow import SlowSettings
from quire_bookie.settings.traces import TraceSettings
from quire_bookie.spans import entry_context
from quire_bookie.wire import client_codec
from tests.support.kept_spans import KeptSpans
from tests.unit.bookie.server.fakes import FakeClock
from tests.unit.bookie.server.scene import LEDGER, Scene, adds

QUICK, SLOW = (ServiceSettings(slow=SlowSettings(limit_s)) for limit_s in (3600.0, 1e-9))


class Traced(KeptSpans):
    """A bookie whose spans are kept."""

    def __init__(self, service: ServiceSettings, **settings: Any) -> None:
        super().__init__()
        tracing = Tracing(TraceSettings(**settings), self, "test", FakeClock(), SystemChance())
        self.scene = Scene(service, TracedAdds(tracing, "b1:3181"))

    def entries(self, name: str) -> list[Any]:
        return [span.attributes["quire.entry"] for span in self.named(name)]


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record)["event"] for record in caplog.records if record.name == "quire.slow"]


@pytest.mark.parametrize("batches", [True, False])
async def test_chosen_entries_have_a_span_below_the_one_that_stored_them(batches: bool) -> None:
    traced = Traced(QUICK, ratio=0.25, per_s_max=1000)
    traced.scene.batches = batches
    for first in range(0, 40, 4):
        await traced.scene.stored(adds(first, 4))
    chosen = [entry for entry in range(40) if chosen_in(4, LEDGER, entry, 1) is not None]
    assert len(chosen) == 10 and traced.entries("bookie add") == chosen
    for span in traced.named("bookie add"):
        stored = entry_context(LEDGER, int(span.attributes["quire.entry"]))
        assert (span.trace_id, span.parent) == (stored.trace_id, stored.span_id)
        assert (span.attributes["quire.bookie"], span.attributes["quire.ledger"]) == ("b1:3181", LEDGER)


async def test_reads_of_chosen_entries_from_the_disk_have_a_span() -> None:
    traced = Traced(QUICK, ratio=1.0, per_s_max=1000)
    await traced.scene.stored(adds(0, 3))
    traced.scene.storage.cached.add((LEDGER, EntryId(1)))
    for entry in (1, 2):
        await traced.scene.handle(client_codec.v2_read(LEDGER, EntryId(entry)))
    assert traced.entries("bookie read") == [2]


@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_the_line_of_a_slow_add_names_its_trace(
    ratio: float, batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    traced = Traced(SLOW, ratio=ratio)
    traced.scene.batches = batches
    await traced.scene.stored(adds(0, 3))
    (line,) = lines(caplog)
    assert line["trace"] == entry_context(LEDGER, 0).trace_text
    assert traced.entries("bookie add") == [0]


async def test_beyond_the_maximum_there_are_lines_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    traced = Traced(SLOW, ratio=0.0, per_s_max=1)
    await traced.scene.stored(adds(0, 1))
    await traced.scene.stored(adds(1, 1))
    assert ["trace" in line for line in lines(caplog)] == [True, False]
    assert traced.entries("bookie add") == [0]


async def test_only_the_line_of_a_read_that_is_traced_names_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    for ratio in (1.0, 0.0):
        traced = Traced(SLOW, ratio=ratio, per_s_max=1000)
        await traced.scene.stored(adds(0, 1))
        caplog.clear()
        await traced.scene.handle(client_codec.v2_read(LEDGER, EntryId(0)))
        (line,) = lines(caplog)
        assert line.get("trace") == (entry_context(LEDGER, 0).trace_text if ratio else None)
