"""Reads the amounts and times that users write in job parameters, such as `7d` or `64Mi`. Pure.

Duration   seconds; a number, alone or with s, m, h, d or w
Size       bytes; a number, alone or with k, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti (powers of 1024)
Moment     a time, ISO 8601; UTC without a zone; None for an empty text
"""

import math
import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import BeforeValidator

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_BYTES = {"": 1}
_BYTES |= {unit: 1000**power for power, unit in enumerate("kMGT", 1)}
_BYTES |= {f"{unit}i": 1024**power for power, unit in enumerate("KMGT", 1)}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def _amount(value: object, units: dict[str, int], example: str) -> object:
    """Return the amount in base units. A value that is not text is left to the model's own check. Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _AMOUNT.fullmatch(value.strip())
    if match is None or match[2] not in units:
        named = ", ".join(unit for unit in units if unit)
        raise ValueError(f"expected a number, alone or with {named}; e.g. {example}")
    return float(match[1]) * units[match[2]]


def _seconds(value: object) -> object:
    return _amount(value, _SECONDS, "7d")


def _bytes(value: object) -> object:
    found = _amount(value, _BYTES, "64Mi")
    return math.floor(found) if isinstance(found, float) else found


def _moment(value: object) -> object:
    if not isinstance(value, str) or not value:
        return value or None
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError("not a time; give e.g. 2026-01-31T12:00:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


Duration = Annotated[float, BeforeValidator(_seconds)]
Size = Annotated[int, BeforeValidator(_bytes)]
Moment = Annotated[datetime | None, BeforeValidator(_moment)]
