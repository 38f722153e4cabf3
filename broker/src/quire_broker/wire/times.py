"""Times in the form of Pulsar's REST and WebSocket: 2026-11-27T14:00:00.123Z. Pure."""

from datetime import UTC, datetime


def time_text(time_ms: int) -> str:
    """Return the text of a time in ms since the epoch; that of the epoch for a time that no calendar has."""
    try:
        found = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        found = datetime.fromtimestamp(0, UTC)
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_of(text: str) -> int:
    """Return the ms since the epoch of such a text, in any time zone. ValueError."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: end it with Z or an offset such as +02:00")
    return round(found.timestamp() * 1000)
