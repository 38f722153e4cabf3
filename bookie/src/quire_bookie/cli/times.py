"""Parses the times and durations that users give to commands. Pure."""

import re
from datetime import UTC, datetime, timedelta

from quire_bookie.errors import ConfigError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_s(option: str, text: str) -> float:
    """Parse 90s, 30m, 2h or 7d into seconds. ConfigError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{option} {text}: give a number with s, m, h or d, for example 2h")
    return float(found[1]) * _SECONDS[found[2]]


def moment_ms(option: str, text: str, now: datetime) -> int:
    """Parse a time, or a duration before `now`, into milliseconds since the epoch; without a zone: UTC. ConfigError."""
    if _DURATION.fullmatch(text.strip()):
        at = now - timedelta(seconds=duration_s(option, text))
    else:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(f"{option} {text}: give 2h, 30m or 1d, or a time like 2026-01-31T12:00Z") from None
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, int(at.timestamp() * 1000))
