"""Logs operations that took long, each as one structured line, with the parts of its duration. Measures nothing.

Callers compare a duration that they know anyway with `after_s`, and call `note` for a slow one. An outage makes all
operations slow, so only SLOW_LINES_PER_S lines are written; the next line says how many are missing before it.
"""

import json
import logging
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.limits import SLOW_LINES_PER_S
from quire_bookie.settings.slow import SlowSettings

_log = logging.getLogger("quire.slow")
Value: TypeAlias = str | int | float
_QUOTED = frozenset(' "=')


class SlowLog:
    """The slow operations of one bookie or broker. `note` is called on the event loop."""

    def __init__(self, settings: SlowSettings | None = None) -> None:
        self.after_s = (settings or SlowSettings()).after_s
        """Operations of this duration and longer are slow; infinite: none is."""
        self.counts: Counter[str] = Counter()
        """Slow operations by kind, also those without a line."""
        self.suppressed = 0
        """Operations without a line, because there were too many."""
        self._untold = 0
        self._lines = RateLimit(SLOW_LINES_PER_S, burst_s=1.0)

    def note(self, operation: str, took_s: float, fields: Mapping[str, Value]) -> None:
        """Log a slow operation. A field whose name ends in `_s` is a duration, and is shown in ms."""
        self.counts[operation] += 1
        if self._lines.wait_s() > 0:
            self.suppressed += 1
            self._untold += 1
            return
        self._lines.reserve(1)
        event: dict[str, Value] = {"operation": operation}
        for name, value in {"took_s": took_s, **fields}.items():
            event[f"{name[:-2]}_ms" if name.endswith("_s") else name] = _shown(name, value)
        if self._untold:
            event["suppressed"], self._untold = self._untold, 0
        _log.warning("%s", " ".join(f"{name}={_text(value)}" for name, value in event.items()), extra={"event": event})


def _shown(name: str, value: Value) -> Value:
    return round(value * 1000, 1) if name.endswith("_s") and not isinstance(value, str) else value


def _text(value: Value) -> str:
    text = str(value)
    return json.dumps(text) if not text or not _QUOTED.isdisjoint(text) else text
