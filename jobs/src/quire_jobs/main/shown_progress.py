"""Shows the progress of a job on standard error: a bar on a terminal, otherwise a line per stage and per interval."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from quire_bookie.control_characters import for_terminal

LINE_INTERVAL_S = 10.0
_BYTES = "bytes"


class BarProgress:
    """Shows one bar, for the current stage; bars of finished stages stay above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Begin a stage; see `quire_jobs.job.Progress`."""
        self._end()
        amounts: list[ProgressColumn] = (
            [DownloadColumn(), TransferSpeedColumn()]
            if unit == _BYTES
            else [MofNCompleteColumn(), TextColumn("{task.fields[unit]}")]
        )
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            *amounts,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._bars.start()
        self._task = self._bars.add_task(stage, total=total, unit=unit)

    def advance(self, units: int) -> None:
        """Count finished units; see `quire_jobs.job.Progress`."""
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, units)

    def note(self, line: str) -> None:
        """Print a line; see `quire_jobs.job.Progress`."""
        self._console.print(for_terminal(line), markup=False, highlight=False)

    def _end(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class LineProgress:
    """Prints progress as lines, for logs."""

    def __init__(self, stream: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now_s = now_s
        self._stage, self._unit = "", ""
        self._total: int | None = None
        self._done = 0
        self._shown_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """Begin a stage; see `quire_jobs.job.Progress`."""
        self._stage, self._total, self._unit, self._done = stage, total, unit, 0
        self._show()

    def advance(self, units: int) -> None:
        """Count finished units; see `quire_jobs.job.Progress`."""
        self._done += units
        if self._now_s() - self._shown_s >= LINE_INTERVAL_S or self._done == self._total:
            self._show()

    def note(self, line: str) -> None:
        """Print a line; see `quire_jobs.job.Progress`."""
        print(for_terminal(line), file=self._stream, flush=True)

    def _show(self) -> None:
        self._shown_s = self._now_s()
        of = "" if self._total is None else f" of {self._total}"
        print(f"{self._stage}: {self._done}{of} {self._unit}", file=self._stream, flush=True)


def progress_on(stream: TextIO) -> BarProgress | LineProgress:
    """Return a bar if the stream is a terminal, otherwise lines."""
    console = Console(file=stream)
    return BarProgress(console) if console.is_terminal else LineProgress(stream)
