"""What an analysis of messages is about, in words, and what it says where there is nothing. Pure; decides nothing else.

A namespace without topics yet, or an hour without messages, is no fault: a schedule goes on, and says so in each run.
"""

from collections.abc import Sequence

from quire_jobs.analytics.parameters import MessageParameters
from quire_jobs.analytics.report.page import Advice, Level
from quire_jobs.analytics.report.units import time_text


def subject(parameters: MessageParameters, unmatched: Sequence[str] = ()) -> str:
    """Topics or table, and which time of them; empty where all topics are `unmatched`."""
    names = parameters.messages or ", ".join(topic for topic in parameters.topics if topic not in unmatched)
    start, end = parameters.bounds
    words = [] if start is None else [f"from {time_text(start.timestamp())}"]
    words += [] if end is None else [f"until {time_text(end.timestamp())}"]
    return f"{names}, published {' '.join(words)}" if names and words else names


def notes(parameters: MessageParameters, unmatched: Sequence[str], *, empty: bool) -> list[str]:
    """For the summary. `unmatched`: patterns that no topic matches; `empty`: no message was found."""
    found = [f"no topic matches {pattern} yet" for pattern in unmatched]
    looked_at = subject(parameters, unmatched)
    return [*found, f"no message in {looked_at}"] if empty and looked_at else found


def advice(said: Sequence[str]) -> list[Advice]:
    """The notes, for the report."""
    do = "Where there should be some: look at the names of the topics and at the bounds of time."
    return [Advice(Level.WATCH, f"{note[0].upper()}{note[1:]}.", do) for note in said]
