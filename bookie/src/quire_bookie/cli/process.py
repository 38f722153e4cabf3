"""Runs a service as a process: event loop, log, signals, exit code. Independent of the service."""

import asyncio
import contextlib
import gc
import json
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

from quire_bookie.cli.early_signals import STOP_SIGNALS, EarlySignals
from quire_bookie.cli.service_options import EventLoop, LogFormat, LogLevel
from quire_bookie.control_characters import escaped
from quire_bookie.errors import ConfigError

T = TypeVar("T")
GC_THRESHOLDS = 10_000, 1, 1_000
"""Garbage is collected among the last 10,000 objects that still exist, which takes up to 5 ms, and every second time
also among those of the collection before. With `50_000, 20, 50` a million objects came together, those of 5,000 topics:
their collection stopped the event loop for 0.6 to 1 s. Adds to a bookie take the same CPU with both. All objects are
visited only after 20 million more, and if they have grown by a quarter: that takes 0.5 s for a million of them.
"""
log = logging.getLogger("quire.process")
_RAW_IN_JSON = re.compile("[\x7f-\x9f\u2028\u2029]")


def set_up_log(level: LogLevel, form: LogFormat = LogFormat.TEXT) -> None:
    """Log one line per event to stderr: time, level, logger, message."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines())
    logging.basicConfig(level=level.value.upper(), handlers=[handler])


class TextLines(logging.Formatter):
    """Formats an event as one line of text, then the traceback of an error, indented.

    Text of a client cannot begin a line: control characters are escaped, in the traceback too.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the lines of the traceback."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if record.stack_info:
            trace += f"\n{record.stack_info}"
        return "\n".join(
            (escaped(self.formatMessage(record)), *(f"  {escaped(each)}" for each in trace.split("\n") if each))
        )


class JsonLines(logging.Formatter):
    """Formats an event as one JSON object: time (UTC), level, logger, message, and the traceback of an error.

    A caller that passes `extra={"event": {...}}` adds an object with these fields.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        fields: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if isinstance(event, dict):
            fields["event"] = event
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        # JSON escapes characters below space. Escape the other control characters too: a parser restores them.
        return _RAW_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(fields, ensure_ascii=False))


def run_service(
    service: Callable[[asyncio.Event], Coroutine[Any, Any, int]], event_loop: EventLoop, early: EarlySignals
) -> int:
    """Run `service(stop)` until it returns its exit code. SIGINT and SIGTERM, also `early` ones, set `stop`; a second
    signal ends the process at once.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        with asyncio.Runner(loop_factory=_loop_factory(event_loop)) as runner:
            return runner.run(_with_signals(service, early))
    finally:
        # The interpreter would collect everything before it ends: 0.5 ms of CPU for each topic of a standalone.
        gc.freeze()


async def unless_stopped(starting: Coroutine[Any, Any, T], stop: asyncio.Event) -> T | None:
    """Return the result of `starting`, or None if `stop` was set first: then it was cancelled and has cleaned up.

    If it completes nevertheless, the caller must stop the result. Its errors are raised.
    """
    begun = asyncio.ensure_future(starting)
    asked = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((begun, asked), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            log.info("stopping before the start is done")
            begun.cancel()
            await asyncio.wait((begun,))
        return None if begun.cancelled() else begun.result()
    finally:
        asked.cancel()
        if not begun.done():  # this task itself was cancelled
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)


async def _with_signals(service: Callable[[asyncio.Event], Coroutine[Any, Any, int]], early: EarlySignals) -> int:
    stop = asyncio.Event()
    async with _signals(stop):
        if early.asked:  # checked only now: from here on the loop handles the signals
            stop.set()
        return await service(stop)


@contextlib.asynccontextmanager
async def _signals(stop: asyncio.Event) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()

    def asked() -> None:
        stop.set()
        for number in STOP_SIGNALS:  # restore the default: a second signal ends the process at once
            loop.remove_signal_handler(number)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, asked)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _loop_factory(event_loop: EventLoop) -> Callable[[], asyncio.AbstractEventLoop]:
    if event_loop is EventLoop.ASYNCIO:
        return asyncio.new_event_loop
    try:
        import uvloop
    except ImportError as error:
        if event_loop is EventLoop.UVLOOP:
            raise ConfigError("--event-loop uvloop: uvloop is not installed; use --event-loop asyncio") from error
        return asyncio.new_event_loop
    return uvloop.new_event_loop
