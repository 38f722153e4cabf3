"""Describes what an analysis of messages covers, and adds notes if it found nothing. Pure.

A namespace without topics, or an hour without messages, is not an error: a schedule continues, and each run notes it.
"""

from collections.abc import Sequence

from quire_jobs.analytics.parameters import MessageParameters
from quire_jobs.analytics.report.page import Advice, Level
from quire_jobs.analytics.report.units import time_text


def subject(parameters: MessageParameters, unmatched: Sequence[str] = ()) -> str:
    """Return topics or table, and the time range; empty if all topics are `unmatched`."""
    names = parameters.messages or ", ".join(topic for topic in parameters.topics if topic not in unmatched)
    start, end = parameters.bounds
    words = [] if start is None else [f"from {time_text(start.timestamp())}"]
    words += [] if end is None else [f"until {time_text(end.timestamp())}"]
    return f"{names}, published {' '.join(words)}" if names and words else names


def notes(parameters: MessageParameters, unmatched: Sequence[str], *, empty: bool) -> list[str]:
    """Return notes for the summary. `unmatched`: patterns without a topic; `empty`: no message was found."""
    found = [f"no topic matches {pattern} yet" for pattern in unmatched]
    looked_at = subject(parameters, unmatched)
    return [*found, f"no message in {looked_at}"] if empty and looked_at else found


def advice(notes: Sequence[str]) -> list[Advice]:
    """Return the notes as advice for the report."""
    do = "If there should be some, check the names of the topics and the time range."
    return [Advice(Level.WATCH, f"{note[0].upper()}{note[1:]}.", do) for note in notes]
