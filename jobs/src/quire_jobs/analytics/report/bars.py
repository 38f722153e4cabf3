"""Charts over names: bars, heat maps, spans of time; and histograms. Functions from numbers to SVG. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from quire_jobs.analytics.report.frame import (
    BOTTOM,
    COLOURS,
    WIDTH,
    Box,
    empty,
    fitted,
    label_width,
    legend,
    svg,
    x_axis,
    y_axis,
)
from quire_jobs.analytics.report.markup import NOTHING, Markup, join, tag
from quire_jobs.analytics.report.scales import Scale, nice_top, ticks, time_ticks
from quire_jobs.analytics.report.units import time_text

Format = Callable[[float], str]
ROWS_MAX: Final = 20
"""Maximum of names in one chart; the table below it has all."""
_ROW: Final = 26.0
_VALUE_WIDTH: Final = 96.0
_SHADES: Final = 9


@dataclass(frozen=True, slots=True)
class Bar:
    """A name with a value for each part of the stack."""

    name: str
    parts: Sequence[float]
    note: str = ""


def bars(rows: Sequence[Bar], shown: Format, *, label: str, parts: Sequence[str] = ()) -> Markup:
    """Return one horizontal bar per row, in the given order; `parts` names the pieces of a stack."""
    rows = rows[:ROWS_MAX]
    if not rows:
        return empty("Nothing to draw: there are no rows.")
    width = label_width([row.name for row in rows])
    top = max(max(sum(row.parts) for row in rows), 1e-12)
    scale = Scale(0, top, width, WIDTH - _VALUE_WIDTH)
    drawn = []
    for index, row in enumerate(rows):
        y = index * _ROW + 4
        drawn.append(tag("text", fitted(row.name, width), x=width - 10, y=y + 14, class_="name end"))
        at = 0.0
        for part, value in enumerate(row.parts):
            if value > 0:
                left, right = scale.at(at), scale.at(at + value)
                shown_value = f"{parts[part]}: {shown(value)}" if part < len(parts) else shown(value)
                drawn.append(
                    tag(
                        "rect",
                        tag("title", f"{row.name}\n{shown_value}{chr(10) + row.note if row.note else ''}"),
                        x=left,
                        y=y,
                        width=max(right - left, 1.0),
                        height=_ROW - 8,
                        rx=2,
                        class_=f"bar f{part % COLOURS}",
                    )
                )
            at += max(value, 0.0)
        drawn.append(tag("text", shown(at), x=scale.at(at) + 8, y=y + 14, class_="value"))
    return join(legend(parts), svg(len(rows) * _ROW + 6, label, *drawn))


def histogram(columns: Sequence[tuple[str, float]], shown: Format, *, label: str, title: str = "") -> Markup:
    """Return one column per bucket, in the given order."""
    if not columns or not any(value > 0 for _, value in columns):
        return empty("Nothing to draw: there are no values.")
    box = Box(bottom=220.0)
    top = nice_top(max(value for _, value in columns))
    y = Scale(0, top, box.bottom, box.top)
    step = (box.right - box.left) / len(columns)
    every = max(1, -(-len(columns) // 14))
    drawn = [y_axis(box, y, [(value, shown(value)) for value in ticks(top)])]
    for index, (name, value) in enumerate(columns):
        drawn.append(
            tag(
                "rect",
                tag("title", f"{name}: {shown(value)}"),
                x=box.left + index * step + step * 0.08,
                y=y.at(value),
                width=step * 0.84,
                height=max(box.bottom - y.at(value), 0.0),
                rx=2,
                class_="bar f0",
            )
        )
    x = Scale(0, len(columns), box.left, box.right)
    names = [(index + 0.5, name) for index, (name, _) in enumerate(columns) if index % every == 0]
    return svg(box.height, label, *drawn, x_axis(box, x, names, title))


def heat_map(
    names: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], shown: Format, *, label: str
) -> Markup:
    """Return a row per name with a cell per column. The darkest cell of a row is its maximum, printed at the end."""
    names = names[:ROWS_MAX]
    if not names or not columns:
        return empty("Nothing to draw: there are no rows.")
    width = label_width(names)
    step = (WIDTH - width - _VALUE_WIDTH) / len(columns)
    drawn = []
    for index, (name, row) in enumerate(zip(names, values, strict=False)):
        y = index * _ROW + 2
        most = max(row, default=0.0)
        drawn.append(tag("text", fitted(name, width), x=width - 10, y=y + 16, class_="name end"))
        for column, value in enumerate(row):
            shade = 0 if most <= 0 or value <= 0 else 1 + min(_SHADES - 2, int(value / most * (_SHADES - 1)))
            drawn.append(
                tag(
                    "rect",
                    tag("title", f"{name}, {columns[column]}: {shown(value)}"),
                    x=width + column * step,
                    y=y,
                    width=step - 2,
                    height=_ROW - 3,
                    rx=2,
                    class_=f"heat h{shade}",
                )
            )
        drawn.append(tag("text", shown(most), x=width + len(columns) * step + 6, y=y + 16, class_="value"))
    bottom = len(names) * _ROW + 2
    every = max(1, -(-len(columns) // 24))
    for column, title in enumerate(columns):
        if column % every == 0:
            drawn.append(
                tag("text", title, x=width + column * step + (step - 2) / 2, y=bottom + 16, class_="tick middle")
            )
    shades = join(*(tag("span", class_=f"swatch h{shade}") for shade in range(_SHADES)))
    key = tag("p", "nothing ", shades, " the row's maximum, printed at its end", class_="heat-key")
    return join(svg(bottom + 24, label, *drawn), key)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of time, in seconds since 1970. `part`: index of its colour."""

    row: str
    name: str
    start_s: float
    end_s: float
    part: int = 0
    note: str = ""


def spans(pieces: Sequence[Span], *, label: str, parts: Sequence[str] = ()) -> Markup:
    """Return ranges of time, a line per row, on one time axis."""
    rows = list(dict.fromkeys(piece.row for piece in pieces))[:ROWS_MAX]
    if not rows:
        return empty("Nothing to draw: there are no spans of time.")
    shown = [piece for piece in pieces if piece.row in rows]
    first, last = min(piece.start_s for piece in shown), max(piece.end_s for piece in shown)
    width = label_width(rows)
    box = Box(left=width, top=0.0, bottom=len(rows) * _ROW + 4)
    x = Scale(first, max(last, first + 1), box.left, box.right)
    drawn: list[Markup] = [
        tag("text", fitted(row, width), x=width - 10, y=rows.index(row) * _ROW + 18, class_="name end") for row in rows
    ]
    for piece in shown:
        y = rows.index(piece.row) * _ROW + 4
        left, right = x.at(piece.start_s), x.at(piece.end_s)
        until = f"{time_text(piece.start_s)} to {time_text(piece.end_s)}"
        drawn.append(
            tag(
                "rect",
                tag("title", "\n".join(filter(None, [piece.row, piece.name, until, piece.note]))),
                x=left,
                y=y,
                width=max(right - left, 3.0),
                height=_ROW - 8,
                rx=3,
                class_=f"bar f{piece.part % COLOURS}",
            )
        )
        if right - left > 7.0 * len(piece.name) + 10:
            drawn.append(tag("text", piece.name, x=left + 6, y=y + 14, class_="on-bar"))
    drawn.append(x_axis(box, x, time_ticks(first, last), "UTC"))
    return join(legend(parts) if parts else NOTHING, svg(box.bottom + BOTTOM, label, *drawn))
