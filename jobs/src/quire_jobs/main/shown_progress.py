"""How far a job is, on standard error: a bar on a terminal, else a line for each stage and now and then one between."""

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
    """One bar, of the present stage; stages that ended stay above it."""

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
        """See `quire_jobs.job.Progress`."""
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
        """See `quire_jobs.job.Progress`."""
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, units)

    def note(self, line: str) -> None:
        """See `quire_jobs.job.Progress`."""
        self._console.print(for_terminal(line), markup=False, highlight=False)

    def _end(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


class LineProgress:
    """For logs."""

    def __init__(self, stream: TextIO, now_s: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now_s = now_s
        self._stage, self._unit = "", ""
        self._total: int | None = None
        self._done = 0
        self._told_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def begin(self, stage: str, total: int | None, unit: str) -> None:
        """See `quire_jobs.job.Progress`."""
        self._stage, self._total, self._unit, self._done = stage, total, unit, 0
        self._tell()

    def advance(self, units: int) -> None:
        """See `quire_jobs.job.Progress`."""
        self._done += units
        if self._now_s() - self._told_s >= LINE_INTERVAL_S or self._done == self._total:
            self._tell()

    def note(self, line: str) -> None:
        """See `quire_jobs.job.Progress`."""
        print(for_terminal(line), file=self._stream, flush=True)

    def _tell(self) -> None:
        self._told_s = self._now_s()
        of = "" if self._total is None else f" of {self._total}"
        print(f"{self._stage}: {self._done}{of} {self._unit}", file=self._stream, flush=True)


def progress_on(stream: TextIO) -> BarProgress | LineProgress:
    """What suits the stream."""
    console = Console(file=stream)
    return BarProgress(console) if console.is_terminal else LineProgress(stream)
