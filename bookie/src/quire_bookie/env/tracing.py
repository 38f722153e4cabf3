"""Chooses which operations of a part of the process are traced, and passes on their spans. Measures nothing.

An entry is chosen by its ids, so that a broker and its bookies choose the same ones with nothing on the wire:

    (entry + ledger * SPREAD) is a multiple of `stride`

`stride` is one over the ratio. While more entries are chosen than the maximum, it doubles, so that what remains is
still a part of what other processes choose. Callers on hot paths compute the line above by `chosen_in`; everything
else here runs only for the entries that are chosen.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, ParamSpec, Protocol

from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.rate_limit import RateLimit
from quire_bookie.settings.traces import TraceSettings
from quire_bookie.spans import Attribute, Kind, Span, TraceContext

SPREAD: Final = 2_654_435_761
"""Odd and large: the first entries of ledgers must not all be chosen."""
_NONE: Final = 1 << 200
"""A stride of which no entry is a multiple, as good as."""
_PERIOD_S: Final = 1.0
_CLOCK_STEP_NS: Final = 20_000_000
"""The wall clock counts ms; a larger difference means that it was set."""
_MS: Final = 1_000_000
_INSTANT_S: Final = 1e-6
"""A shorter part of an operation is left out."""


_Arguments = ParamSpec("_Arguments")


class SpanSink(Protocol):
    """Takes spans without waiting."""

    def take(self, span: Span) -> None:
        """Pass a span on, or lose and count it."""
        ...

    def defer(
        self, report: Callable[_Arguments, object], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> None:
        """Call `report`, which makes spans, soon, in a row with others, and before the process ends."""
        ...


class Times(NamedTuple):
    """The beginning and the end of an operation, in loop time."""

    start_s: float
    end_s: float


def chosen_in(stride: int, ledger: int, first: int, count: int) -> int | None:
    """Return the first of these consecutive entries that is chosen, if any."""
    ahead = -(first + ledger * SPREAD) % stride
    return first + ahead if ahead < count else None


class Tracing:
    """The traces of one bookie or broker. Used on the event loop."""

    def __init__(self, settings: TraceSettings, sink: SpanSink, scope: str, clock: WallClock, chance: Chance) -> None:
        """`scope`: the name under which collectors see the part of the process."""
        self.by_position = settings.ratio > 0
        """Whether any entries are chosen by their ids."""
        self._base = max(1, round(1 / settings.ratio)) if self.by_position else _NONE
        self.stride = self._base
        self.refused = 0
        """Chosen operations beyond the maximum."""
        self._sink = sink
        self.defer = sink.defer
        self._scope = scope
        self._clock = clock
        self._ids = int.from_bytes(chance.token(8), "big")
        self._loop = asyncio.get_running_loop()
        self._per_s_max = settings.per_s_max
        self._admitted = RateLimit(settings.per_s_max, burst_s=1.0)
        self._look_s = 1 / settings.looks_per_s_max if settings.looks_per_s_max else float("inf")
        self._next_look_s = float("-inf") if settings.looks_per_s_max else float("inf")
        self._since_s = self._loop.time()
        self._chosen = 0
        self._epoch_ns = self._measured_epoch_ns()

    # ---- choosing
    def may_look(self, now_s: float) -> bool:
        """Return whether one more message may be read for the context of its client, and count it."""
        if now_s < self._next_look_s:
            return False
        self._next_look_s = max(self._next_look_s, now_s - 1.0) + self._look_s
        return True

    def admit(self) -> bool:
        """Return whether one more operation may be traced, and count it."""
        self._adapt()
        if self._admitted.wait_s() > 0:
            self.refused += 1
            return False
        self._admitted.reserve(1)
        return True

    def _adapt(self) -> None:
        """Halve or double the share of the chosen entries once a period, if it does not suit the maximum."""
        self._chosen += 1
        past_s = self._loop.time() - self._since_s
        if past_s < _PERIOD_S:
            return
        per_s = self._chosen / past_s
        if per_s > self._per_s_max and self.stride < _NONE:
            self.stride *= 2
        elif per_s < self._per_s_max / 4 and self.stride > self._base:
            self.stride //= 2
        self._since_s, self._chosen = self._since_s + past_s, 0

    # ---- spans
    def new_id(self) -> int:
        """Return the id of another span."""
        self._ids = (self._ids + 0x9E3779B97F4A7C15) & 0xFFFF_FFFF_FFFF_FFFF
        return self._ids or self.new_id()

    def span(
        self,
        name: str,
        kind: Kind,
        context: TraceContext,
        parent: int,
        times: Times,
        attributes: Mapping[str, Attribute],
        *,
        links: tuple[TraceContext, ...] = (),
        error: str | None = None,
    ) -> None:
        """Pass on a span with the ids of `context`, below the span `parent`."""
        epoch_ns = self._epoch()
        start_ns = epoch_ns + int(times.start_s * 1e9)
        end_ns = max(start_ns, epoch_ns + int(times.end_s * 1e9))
        made = (context.trace_id, context.span_id, parent, start_ns, end_ns, attributes, links, error)
        self._sink.take(Span(self._scope, name, kind, *made))

    def below(
        self, context: TraceContext, name: str, times: Times, attributes: Mapping[str, Attribute], kind: Kind
    ) -> TraceContext:
        """Pass on a span below that of `context`, with a new id. Return its context."""
        made = TraceContext(context.trace_id, self.new_id())
        self.span(name, kind, made, context.span_id, times, attributes)
        return made

    def part(self, whole: TraceContext, name: str, times: Times) -> None:
        """Pass on a span of a part of the operation `whole`, unless it took no time."""
        if times.end_s - times.start_s >= _INSTANT_S:
            self.below(whole, name, times, {}, Kind.INTERNAL)

    def _epoch(self) -> int:
        """Return the wall time at which the loop's time was 0: the same for all spans unless the clock is set."""
        measured = self._measured_epoch_ns()
        if abs(measured - self._epoch_ns) > _CLOCK_STEP_NS:
            self._epoch_ns = measured
        return self._epoch_ns

    def _measured_epoch_ns(self) -> int:
        return self._clock.now_ms() * _MS - int(self._loop.time() * 1e9)
