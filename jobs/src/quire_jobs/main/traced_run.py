"""Reports a run of a job as spans: one for the run, and below it one for the start of Spark and one for each stage.

The standard variables of OpenTelemetry say where they go (docs/tracing.md); without an endpoint nothing is reported.
Texts of errors stay out: they may quote secrets among the settings of Spark.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from quire_bookie.env.chance import SystemChance
from quire_bookie.env.span_export import open_span_export
from quire_bookie.settings.traces import TraceSettings
from quire_bookie.spans import Attribute, Kind, Span, TraceContext
from quire_jobs.job import Progress

_SCOPE: Final = "quire.jobs"
_SPARK: Final = "start Spark"


class TracedRun:
    """The progress of one run: shows it, and reports the stages that have ended."""

    def __init__(
        self,
        shown: Progress,
        take: Callable[[Span], object],
        kind: str,
        run_id: str,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`take`: receives the spans. `now_ns`: the time since the epoch."""
        self._shown = shown
        self._take = take
        self._now_ns = now_ns
        self._name = f"job {kind}"
        self._attributes: dict[str, Attribute] = {"quire.job": kind, "quire.job.run": run_id}
        self._chance = SystemChance()
        self._run = TraceContext(int.from_bytes(b"\x01" + self._chance.token(15), "big"), self._new_id())
        self._began_ns = now_ns()
        self._stage = _SPARK
        self._stage_ns = self._began_ns
        self._units = 0

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Begin a stage; see `quire_jobs.job.Progress`."""
        self._end_stage(None)
        self._stage = stage
        self._shown.begin(stage, total, unit)

    def advance(self, units: int) -> None:
        """Count finished units; see `quire_jobs.job.Progress`."""
        self._units += units
        self._shown.advance(units)

    def note(self, line: str) -> None:
        """Show a line; see `quire_jobs.job.Progress`."""
        self._shown.note(line)

    def spark_started(self) -> None:
        """End the span of the start of Spark; what follows until the first stage is the span `plan`."""
        self._end_stage(None)
        self._stage = "plan"

    def end(self, error: str | None) -> None:
        """End the last stage and the run. `error`: the kind of the error that ended it."""
        self._end_stage(error)
        self._report(self._name, self._run.span_id, 0, self._began_ns, self._attributes, error)

    def _end_stage(self, error: str | None) -> None:
        attributes: dict[str, Attribute] = {"quire.job.units": self._units} if self._units else {}
        self._report(self._stage, self._new_id(), self._run.span_id, self._stage_ns, attributes, error)
        self._units, self._stage_ns = 0, self._now_ns()

    def _report(
        self, name: str, span_id: int, parent: int, began_ns: int, attributes: dict[str, Attribute], error: str | None
    ) -> None:
        ended_ns = max(began_ns, self._now_ns())  # the clock may be set back
        ids = (self._run.trace_id, span_id, parent)
        self._take(Span(_SCOPE, name, Kind.INTERNAL, *ids, began_ns, ended_ns, attributes, (), error))

    def _new_id(self) -> int:
        return int.from_bytes(b"\x01" + self._chance.token(7), "big")


@contextmanager
def traced_run(shown: Progress, kind: str, run_id: str) -> Iterator[TracedRun]:
    """Yield the progress of a run, and report its end. ConfigError: a standard variable cannot be used."""
    spans = open_span_export(TraceSettings(), "quire-jobs")
    run = TracedRun(shown, _dropped if spans is None else spans.take, kind, run_id)
    try:
        yield run
    except BaseException as error:
        run.end(type(error).__name__)
        raise
    else:
        run.end(None)
    finally:
        if spans is not None:
            spans.close()


def _dropped(_span: Span) -> None:
    """Take a span where there is no collector."""
