"""Formats rows, sizes and durations as text. Pure."""

from collections.abc import Sequence

from quire_operator.kubectl.terminal import on_one_line

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Format columns under headers, like `kubectl get`; an absent value is `-`."""
    cells = [list(headers), *([text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    lines = ["   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join(lines)


def text(cell: object) -> str:
    """Format a cell."""
    return "-" if cell is None or cell == "" else on_one_line(str(cell))


def size(value: int | None) -> str | None:
    """Format bytes in the largest unit that gives a number of at least one."""
    if value is None:
        return None
    amount, unit = float(value), 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{value} B" if unit == 0 else f"{amount:.1f} {_UNITS[unit]}"


def duration(seconds: float | None) -> str | None:
    """Format a duration in its two largest units: `3d4h`, `5h2m`, `4m`, `12s`."""
    if seconds is None:
        return None
    rest = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if rest >= length or (unit == "s" and not parts):
            parts.append(f"{rest // length}{unit}")
            rest %= length
        if len(parts) == 2:
            break
    return "".join(parts)
