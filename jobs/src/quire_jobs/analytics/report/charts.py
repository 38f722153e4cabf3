"""Charts over a continuous axis: values over time, and curves. Functions from numbers to SVG. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from quire_jobs.analytics.report.frame import COLOURS, Box, empty, legend, svg, x_axis, y_axis
from quire_jobs.analytics.report.markup import NOTHING, Markup, join, shortened, tag
from quire_jobs.analytics.report.scales import Scale, duration_ticks, finite, log_ticks, nice_top, ticks, time_ticks
from quire_jobs.analytics.report.units import time_text

Format = Callable[[float], str]
_MARKS_MAX: Final = 400
"""Maximum of points of a chart that show their values under the mouse pointer."""


@dataclass(frozen=True, slots=True)
class Series:
    """A name and its points, by rising x."""

    name: str
    points: Sequence[tuple[float, float]]


def stacked_over_time(
    series: Sequence[Series], shown: Format, *, step_s: float, label: str, binary: bool = False
) -> Markup:
    """Return stacked areas, in buckets of `step_s`; a bucket that a series lacks counts as 0."""
    series = [one for one in series if one.points]
    if not series:
        return empty("Nothing to draw: there is no message with a usable time.")
    by_series = [dict(one.points) for one in series[:COLOURS]]
    first = min(min(points) for points in by_series)
    last = max(max(points) for points in by_series)
    places = _places(first, last, step_s, by_series)
    totals = [sum(points.get(place, 0.0) for points in by_series) for place in places]
    box = Box()
    x = Scale(first, last + step_s, box.left, box.right)
    top = nice_top(max(totals), binary)
    y = Scale(0, top, box.bottom, box.top)
    below = [0.0] * len(places)
    areas = []
    for index, points in enumerate(by_series):
        above = [base + points.get(place, 0.0) for base, place in zip(below, places, strict=True)]
        areas.append(tag("path", d=_band(places, below, above, x, y, step_s), class_=f"area f{index}"))
        below = above
    marks = NOTHING
    if len(places) <= _MARKS_MAX:
        marks = join(*(_mark(place, step_s, series, by_series, shown, x, box) for place in places))
    drawn = svg(
        box.height,
        label,
        y_axis(box, y, [(value, shown(value)) for value in ticks(max(totals), binary)]),
        *areas,
        x_axis(box, x, time_ticks(first, last + step_s), "UTC"),
        marks,
    )
    return join(legend([one.name for one in series[:COLOURS]]), drawn)


def _places(first: float, last: float, step_s: float, by_series: Sequence[dict[float, float]]) -> list[float]:
    """Return every bucket between first and last, so that gaps are visible; only those with data if there are too
    many."""
    count = int((last - first) / step_s) + 1
    if count <= 20_000:
        return [first + index * step_s for index in range(count)]
    return sorted({place for points in by_series for place in points})


def _band(
    places: Sequence[float], below: Sequence[float], above: Sequence[float], x: Scale, y: Scale, step_s: float
) -> str:
    """Return the path of an area with steps instead of slopes: a bucket has one value over its whole width."""
    there, back = [], []
    for place, low, high in zip(places, below, above, strict=True):
        left, right = x.at(place), x.at(place + step_s)
        there.append(f"L{left:.1f} {y.at(high):.1f}L{right:.1f} {y.at(high):.1f}")
        back.append(f"L{right:.1f} {y.at(low):.1f}L{left:.1f} {y.at(low):.1f}")
    return "M" + "".join(there)[1:] + "".join(reversed(back)) + "Z"


def _mark(
    place: float,
    step_s: float,
    series: Sequence[Series],
    by_series: Sequence[dict[float, float]],
    shown: Format,
    x: Scale,
    box: Box,
) -> Markup:
    lines = [time_text(place)]
    lines += [
        f"{shortened(one.name, 60)}: {shown(points[place])}"
        for one, points in zip(series[:COLOURS], by_series, strict=True)
        if points.get(place)
    ]
    left, right = x.at(place), x.at(place + step_s)
    return tag(
        "rect",
        tag("title", "\n".join(lines)),
        x=left,
        y=box.top,
        width=max(right - left, 0.5),
        height=box.bottom - box.top,
        class_="hover",
    )


@dataclass(frozen=True, slots=True)
class Axis:
    """Describes an axis: title, format of values; logarithmic, binary, of times, of durations."""

    title: str
    shown: Format
    log: bool = False
    binary: bool = False
    time: bool = False
    lengths: bool = False


def curves(series: Sequence[Series], across: Axis, up: Axis, *, label: str, points: bool = False) -> Markup:
    """Return lines through points; `points` draws the points too. A logarithmic axis omits values up to 0."""
    kept = [
        Series(one.name, [(a, b) for a, b in one.points if (a > 0 or not across.log) and (b > 0 or not up.log)])
        for one in series
    ][:COLOURS]
    kept = [one for one in kept if one.points]
    if not kept:
        return empty("Nothing to draw: there are no values.")
    box = Box()
    xs = finite([a for one in kept for a, _ in one.points])
    ys = finite([b for one in kept for _, b in one.points])
    x, x_labels = _scaled(xs, across, box.left, box.right)
    y, y_labels = _scaled(ys, up, box.bottom, box.top)
    drawn = [y_axis(box, y, y_labels)]
    for index, one in enumerate(kept):
        path = "M" + "L".join(f"{x.at(a):.1f} {y.at(b):.1f}" for a, b in one.points)
        drawn.append(tag("path", d=path, class_=f"line l{index}"))
        if points or len(one.points) == 1:
            drawn += [
                tag(
                    "circle",
                    tag("title", f"{shortened(one.name, 60)}\n{across.shown(a)}: {up.shown(b)}"),
                    cx=x.at(a),
                    cy=y.at(b),
                    r=4.0,
                    class_=f"dot f{index}",
                )
                for a, b in one.points[:_MARKS_MAX]
            ]
    drawn.append(x_axis(box, x, x_labels, across.title))
    heading = tag("p", up.title, class_="axis-title") if up.title else NOTHING
    return join(legend([one.name for one in kept]), heading, svg(box.height, label, *drawn))


def _scaled(values: Sequence[float], axis: Axis, start: float, end: float) -> tuple[Scale, list[tuple[float, str]]]:
    low, high = min(values), max(values)
    if axis.log:
        marks = duration_ticks(low, high) if axis.lengths else log_ticks(low, high)
        return Scale(marks[0], marks[-1], start, end, log=True), [(mark, axis.shown(mark)) for mark in marks]
    if axis.time:
        return Scale(low, max(high, low + 1), start, end), time_ticks(low, high)
    marks = ticks(high, axis.binary)
    return Scale(0, marks[-1], start, end), [(mark, axis.shown(mark)) for mark in marks]
