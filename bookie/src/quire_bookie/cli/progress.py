"""Shows a progress bar for work that takes longer than two seconds."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from quire_bookie.env.clock import SystemClock

SHOWN_AFTER_MS = 2000


class _Bar:
    """Counts finished work; the bar appears once the work has taken `SHOWN_AFTER_MS`."""

    def __init__(self, what: str, total: int | None, *, in_bytes: bool) -> None:
        self._what = what
        self._total = total
        self._in_bytes = in_bytes
        self._done = 0
        self._clock = SystemClock()
        self._began_ms = self._clock.now_ms()
        self._shown: tuple[Any, Any] | None = None

    def advance(self, count: int) -> None:
        """Note that `count` more is done."""
        self._done += count
        if self._shown is not None:
            bar, task = self._shown
            bar.update(task, completed=self._done)
        elif self._clock.now_ms() - self._began_ms >= SHOWN_AFTER_MS:
            self._shown = self._show()

    def _show(self) -> tuple[Any, Any]:
        from rich.console import Console  # 60 ms that no short command waits for
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        amount = DownloadColumn(binary_units=True) if self._in_bytes else MofNCompleteColumn()
        columns = (TextColumn(self._what), BarColumn(), amount, TimeRemainingColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.start()
        return bar, bar.add_task(self._what, total=self._total, completed=self._done)

    def close(self) -> None:
        """Remove the bar."""
        if self._shown is not None:
            self._shown[0].stop()


@contextlib.contextmanager
def progress(
    what: str, total: int | None, *, in_bytes: bool = True, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the amount done since its last call. Nothing is shown unless stderr is a terminal.

    `total` is None if it is unknown. `quiet`: a program reads the output.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda count: None
        return
    bar = _Bar(what, total, in_bytes=in_bytes)
    try:
        yield bar.advance
    finally:
        bar.close()
