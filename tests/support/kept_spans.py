"""Keeps the spans that a part of a process reports, for tests."""

from collections.abc import Callable
from typing import ParamSpec

from quire_bookie.spans import Span

_Arguments = ParamSpec("_Arguments")


class KeptSpans:
    """Takes spans at once, also those that are deferred."""

    def __init__(self) -> None:
        self.taken: list[Span] = []

    def take(self, span: Span) -> None:
        """Keep it."""
        self.taken.append(span)

    def defer(
        self, report: Callable[_Arguments, object], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> None:
        """Call it at once."""
        report(*arguments, **named)

    def named(self, name: str) -> list[Span]:
        """Return the spans of that name."""
        return [span for span in self.taken if span.name == name]
