"""Parses and formats Kubernetes quantities and durations. Arithmetic only."""

import re
from decimal import ROUND_CEILING, Decimal

VALUE_LENGTH_MAX = 32
QUANTITY_PATTERN = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"
DURATION_PATTERN = r"^([0-9]+(ms|s|m|h))+$"

_UNITS_BYTES = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
}
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def quantity_bytes(text: str) -> int:
    """Return the bytes of a quantity, rounded up. ValueError if it is invalid."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", text)
    if found is None or found[2] not in _UNITS_BYTES:
        raise ValueError(f"{text!r} is not a quantity of bytes; use a value like 500Mi, 2Gi or 1T")
    return int((Decimal(found[1]) * _UNITS_BYTES[found[2]]).to_integral_value(ROUND_CEILING))


def quantity_mib(text: str) -> int:
    """Return the MiB of a quantity, rounded up; at least 1. ValueError if it is invalid."""
    return max(1, -(-quantity_bytes(text) // 2**20))


def bytes_quantity(size_bytes: int) -> str:
    """Return the shortest quantity of exactly this many bytes, in binary units."""
    units = ["", "Ki", "Mi", "Gi", "Ti", "Pi"]
    power = 0
    while size_bytes and size_bytes % 1024 == 0 and power < len(units) - 1:
        size_bytes //= 1024
        power += 1
    return f"{size_bytes}{units[power]}"


def duration_ms(text: str) -> int:
    """Return the milliseconds of a duration. ValueError if it is invalid."""
    if re.fullmatch(DURATION_PATTERN, text) is None:
        raise ValueError(f"{text!r} is not a duration; use a value like 90s, 10m or 168h")
    return sum(int(number) * _UNITS_MS[unit] for number, unit in re.findall(r"([0-9]+)(ms|s|m|h)", text))


def duration_s(text: str) -> float:
    """Return the seconds of a duration. ValueError if it is invalid."""
    return duration_ms(text) / 1000


def cores(text: str) -> float:
    """Return the cores of a quantity of CPU: `2`, `0.5`, `1500m`. ValueError if it is invalid."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m?)", text)
    if found is None:
        raise ValueError(f"{text!r} is not a quantity of CPU; use a value like 2 or 500m")
    return float(Decimal(found[1]) / (1000 if found[2] else 1))
