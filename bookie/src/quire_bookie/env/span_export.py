"""Owns the spans that wait for a collector, and the thread that sends them. Never makes the event loop wait.

A thread that runs Python code keeps the interpreter from the loop for up to 5 ms, at each system call of the loop. This
one encodes few spans at a time and pauses between them; otherwise it waits for sockets. Spans are made later and in a
row: code that runs now and then is several times slower than code in the processor's caches. A span is lost and counted
if the queue is full, or if the collector does not take its batch in time.
"""

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, ParamSpec, Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.env.otlp_encoding import encode_span
from quire_bookie.env.otlp_options import endpoint_of, otlp_options
from quire_bookie.settings.traces import TraceSettings
from quire_bookie.spans import Span

_log = logging.getLogger("quire.traces")
_BATCH_SPANS: Final = 512
_ENCODED_AT_ONCE: Final = 32
"""Spans that are encoded without a pause, in some 0.2 ms."""
_ENCODING_PAUSE_S: Final = 0.0005
_DEFER_S: Final = 0.5
_DEFERRED_MAX: Final = 16
"""Reports that wait for that time; together they take some 1 ms of the loop."""
_EXPORT_EVERY_S: Final = 1.0
_LAST_EXPORT_S: Final = 3.0
"""How long the end of the process waits for the last spans."""


_Arguments = ParamSpec("_Arguments")


class SpanSender(Protocol):
    """Sends batches of spans. Used in one thread."""

    def send(self, spans: Sequence[tuple[str, bytes]]) -> bool:
        """Return whether the collector took these scopes and encoded spans. May take as long as the time limit."""
        ...

    def stop(self) -> None:
        """End a `send` that runs in another thread soon."""
        ...


@dataclass(slots=True)
class SpanStats:
    """Counters since the start."""

    exported: int = 0
    lost_full: int = 0
    """Lost because the queue was full."""
    lost_failed: int = 0
    """Lost because the collector did not take them."""


def open_span_export(
    settings: TraceSettings, service: str, environment: Mapping[str, str] = os.environ
) -> "SpanExport | None":
    """Return the export of the process; None if nothing is traced. ConfigError: the endpoint, or a standard variable.

    `service`: the name of the service, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES give one.
    """
    endpoint = endpoint_of(settings, environment)
    if not endpoint:
        return None
    # Imported here: the HTTP client of the standard library would slow each start, also without traces.
    from quire_bookie.env.otlp_sender import OtlpSender

    return SpanExport(OtlpSender(otlp_options(endpoint, service, environment)), settings.queue_spans, endpoint)


class SpanExport:
    """A queue of spans and its thread, which starts with the first span."""

    def __init__(self, sender: SpanSender, spans_max: int, endpoint: str) -> None:
        self.stats = SpanStats()
        self._sender = sender
        self._endpoint = endpoint
        self._spans_max = spans_max
        self._queue: deque[Span] = deque()
        self._deferred: list[Callable[[], object]] = []
        self._wanted = threading.Event()
        self._stopping = False
        self._fails = False
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """The number of spans in the queue."""
        return len(self._queue)

    def defer(
        self, report: Callable[_Arguments, object], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> None:
        """See SpanSink."""
        self._deferred.append(partial(report, *arguments, **named))
        if len(self._deferred) == 1:
            asyncio.get_running_loop().call_later(_DEFER_S, self._report)
        elif len(self._deferred) >= _DEFERRED_MAX:
            self._report()

    def _report(self) -> None:
        deferred, self._deferred = self._deferred, []
        for report in deferred:
            report()

    def take(self, span: Span) -> None:
        """Queue a span. It is lost if the queue is full."""
        queue = self._queue
        if len(queue) >= self._spans_max or self._stopping:
            self.stats.lost_full += 1
            return
        queue.append(span)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="quire-spans", daemon=True)
            self._thread.start()
        if len(queue) == _BATCH_SPANS:
            self._wanted.set()

    def close(self) -> None:
        """Send what waits, for a bounded time, and end the thread. Spans that are left are lost."""
        self._report()
        self._stopping = True
        self._wanted.set()
        if self._thread is None:
            return
        self._thread.join(_LAST_EXPORT_S)
        self._sender.stop()
        if left := len(self._queue):
            self.stats.lost_failed += left
            _log.warning("%d spans were not sent to %s", left, self._endpoint)

    def _run(self) -> None:
        while True:
            stopping = self._stopping
            self._wanted.wait(_EXPORT_EVERY_S)
            self._wanted.clear()
            while self._queue:
                self._send([self._queue.popleft() for _ in range(min(_BATCH_SPANS, len(self._queue)))])
                if self._fails and self._stopping:
                    return
            if stopping:
                return

    def _send(self, batch: Sequence[Span]) -> None:
        try:
            taken = self._sender.send(self._encoded(batch))
        except Exception:  # noqa: BLE001  root of the thread: a defect must not end all exports
            _log.exception("could not send spans")
            taken = False
        if taken:
            self.stats.exported += len(batch)
        else:
            self.stats.lost_failed += len(batch)
        if taken is self._fails:
            self._fails = not taken
            if taken:
                _log.info("spans are sent to %s again", self._endpoint)
            else:
                _log.warning("%s takes no spans; they are lost until it does", self._endpoint)

    def _encoded(self, batch: Sequence[Span]) -> list[tuple[str, bytes]]:
        encoded: list[tuple[str, bytes]] = []
        for first in range(0, len(batch), _ENCODED_AT_ONCE):
            if first:
                time.sleep(_ENCODING_PAUSE_S)
            encoded += [(span.scope, encode_span(span)) for span in batch[first : first + _ENCODED_AT_ONCE]]
        return encoded
