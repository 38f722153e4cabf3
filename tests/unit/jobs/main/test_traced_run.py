"""The spans of a run: its stages, its end, and the collector that the environment names."""

from itertools import count, pairwise

import pytest

from quire_bookie.spans import Span
from quire_jobs.main.traced_run import TracedRun, traced_run
from tests.support.otlp_receiver import otlp_receiver


class Shown:
    """Keeps what a user sees."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        self.seen.append((stage, total, unit))

    def advance(self, units: int) -> None:
        self.seen.append(units)

    def note(self, line: str) -> None:
        self.seen.append(line)


def test_each_stage_has_a_span_below_that_of_the_run_and_is_shown() -> None:
    shown, taken, clock = Shown(), list[Span](), count(1_000, 10)
    run = TracedRun(shown, taken.append, "throughput", "run-1", lambda: next(clock))
    run.note("a line")
    run.spark_started()
    run.begin("reading messages", None, "messages")
    run.advance(3)
    run.advance(4)
    run.begin("writing tables", 1, "tables")
    run.end(None)
    assert shown.seen == ["a line", ("reading messages", None, "messages"), 3, 4, ("writing tables", 1, "tables")]
    names = [span.name for span in taken]
    assert names == ["start Spark", "plan", "reading messages", "writing tables", "job throughput"]
    whole = taken[-1]
    assert {(span.trace_id, span.parent) for span in taken[:-1]} == {(whole.trace_id, whole.span_id)}
    assert whole.parent == 0 and whole.attributes == {"quire.job": "throughput", "quire.job.run": "run-1"}
    assert taken[2].attributes == {"quire.job.units": 7} and taken[3].attributes == {}
    for earlier, later in pairwise(taken[:-1]):
        assert whole.start_ns <= earlier.start_ns <= earlier.end_ns <= later.start_ns <= later.end_ns <= whole.end_ns
    assert len({span.span_id for span in taken}) == len(taken)


def test_a_clock_that_is_set_back_gives_no_span_that_ends_before_it_begins() -> None:
    taken, clock = list[Span](), count(1_000, -10)
    run = TracedRun(Shown(), taken.append, "audit", "run-1", lambda: next(clock))
    run.begin("reading", None, "ledgers")
    run.end(None)
    assert all(span.start_ns <= span.end_ns for span in taken) and len(taken) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_reaches_the_collector_of_the_environment(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with otlp_receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", receiver.url)
        try:
            with traced_run(Shown(), "audit", "run-1") as run:
                run.spark_started()
                if fails:
                    raise SystemExit("a secret")
        except SystemExit:
            assert fails
    spans = {each.name: each for each in receiver.spans}
    assert sorted(spans) == ["job audit", "plan", "start Spark"]
    assert {each.service for each in receiver.spans} == {"quire-jobs"}
    assert spans["job audit"].span.status.message == ("SystemExit" if fails else "")


def test_without_an_endpoint_a_run_is_only_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    shown = Shown()
    with traced_run(shown, "audit", "run-1") as run:
        run.begin("reading", 1, "ledgers")
    assert shown.seen == [("reading", 1, "ledgers")]
