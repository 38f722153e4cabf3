"""The frame of a chart as SVG: box, axes, grid and legend. Pure. Draws no data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quire_jobs.analytics.report.markup import NOTHING, Markup, join, shortened, tag
from quire_jobs.analytics.report.scales import Scale

WIDTH: Final = 880.0
LEFT: Final = 86.0
RIGHT: Final = 18.0
TOP: Final = 14.0
BOTTOM: Final = 36.0
COLOURS: Final = 8
"""Number of distinguishable colours in the palette."""
_LETTER: Final = 7.7
"""Mean width of a letter of a label, in pixels."""


@dataclass(frozen=True, slots=True)
class Box:
    """Area of the data, in pixels of the chart."""

    left: float = LEFT
    top: float = TOP
    right: float = WIDTH - RIGHT
    bottom: float = 260.0

    @property
    def height(self) -> float:
        """Height of the whole chart."""
        return self.bottom + BOTTOM


def svg(height: float, label: str, *children: Markup) -> Markup:
    """Return a chart that fills the available width. `label`: its description for screen readers."""
    return tag(
        "svg",
        *children,
        class_="chart",
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label=label,
        preserveAspectRatio="xMidYMid meet",
    )


def empty(words: str) -> Markup:
    """Return a text in place of a chart without data."""
    return tag("p", words, class_="empty")


def y_axis(box: Box, scale: Scale, labels: Sequence[tuple[float, str]]) -> Markup:
    """Return horizontal grid lines with their labels at the left."""
    lines = []
    for value, label in labels:
        y = scale.at(value)
        lines.append(tag("line", x1=box.left, x2=box.right, y1=y, y2=y, class_="grid" if value else "axis"))
        lines.append(tag("text", label, x=box.left - 8, y=y + 4, class_="tick end"))
    return join(*lines)


def x_axis(box: Box, scale: Scale, labels: Sequence[tuple[float, str]], title: str = "") -> Markup:
    """Return ticks below the box."""
    parts = [tag("line", x1=box.left, x2=box.right, y1=box.bottom, y2=box.bottom, class_="axis")]
    for value, label in labels:
        x = scale.at(value)
        parts.append(tag("line", x1=x, x2=x, y1=box.bottom, y2=box.bottom + 5, class_="axis"))
        parts.append(tag("text", label, x=x, y=box.bottom + 19, class_="tick middle"))
    if title:
        parts.append(tag("text", title, x=box.right, y=box.bottom + 33, class_="tick end"))
    return join(*parts)


def legend(names: Sequence[str]) -> Markup:
    """Return the colours by name, above a chart; nothing for a single series."""
    if len(names) < 2:
        return NOTHING
    return tag(
        "ul",
        *(
            tag("li", tag("span", class_=f"swatch s{index % COLOURS}"), shortened(name, 60))
            for index, name in enumerate(names)
        ),
        class_="legend",
    )


def label_width(names: Sequence[str], most: float = 280.0) -> float:
    """Return the width in pixels that labels at the left of rows need."""
    return min(most, max((len(shortened(name)) * _LETTER for name in names), default=0.0) + 14)


def fitted(name: str, width: float) -> str:
    """Return a name shortened to this width in pixels."""
    return shortened(name, max(8, int((width - 14) / _LETTER)))
