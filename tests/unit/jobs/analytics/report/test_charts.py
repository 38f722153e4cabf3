"""Charts are well-formed SVG within their box, for any numbers and names."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_jobs.analytics.report.bars import Bar, Span, bars, heat_map, histogram, spans
from quire_jobs.analytics.report.charts import Axis, Series, curves, stacked_over_time
from quire_jobs.analytics.report.frame import WIDTH
from quire_jobs.analytics.report.markup import Markup
from quire_jobs.analytics.report.scales import Scale, duration_ticks, log_ticks, ticks, time_ticks
from quire_jobs.analytics.report.units import bytes_text, count_text

NAME = "a <b> & \"c\" 'd' ]]>"
amounts = st.floats(min_value=0, max_value=1e18)


def elements(chart: Markup) -> list[ElementTree.Element]:
    """Return all elements; fails if the chart is not well-formed."""
    return list(ElementTree.fromstring(f"<div>{chart}</div>").iter())


def inside(chart: Markup) -> None:
    """Assert that every rectangle is within the chart."""
    for one in elements(chart):
        if one.tag == "rect":
            left, width = float(one.attrib["x"]), float(one.attrib["width"])
            assert left >= 0 and width >= 0 and left + width <= WIDTH + 4


@given(st.lists(st.tuples(st.text(min_size=1, max_size=30), amounts), max_size=30))
def test_bars_stay_in_their_box(rows: list[tuple[str, float]]) -> None:
    inside(bars([Bar(name, [value]) for name, value in rows], count_text, label=NAME))


def test_the_longest_bar_is_the_largest_value() -> None:
    chart = bars([Bar("a", [50.0, 50.0]), Bar("b", [25.0])], count_text, label="x", parts=("one", "two"))
    widths = [float(one.attrib["width"]) for one in elements(chart) if one.attrib.get("class", "").startswith("bar")]
    assert widths[0] == pytest.approx(widths[1], abs=0.1)
    assert widths[0] == pytest.approx(2 * widths[2], abs=0.1)


@given(st.lists(st.tuples(st.integers(0, 10**7), amounts), min_size=1, max_size=50))
def test_areas_over_time_accept_any_numbers(points: list[tuple[int, float]]) -> None:
    series = [Series(NAME, [(float(at // 3600 * 3600), value) for at, value in sorted(points)])]
    inside(stacked_over_time(series, bytes_text, step_s=3600, label=NAME, binary=True))


def test_a_gap_in_time_is_drawn_as_a_gap() -> None:
    chart = stacked_over_time([Series("a", [(0, 5.0), (7200, 5.0)])], count_text, step_s=3600, label="x")
    marks = [one for one in elements(chart) if one.attrib.get("class") == "hover"]
    assert len(marks) == 3


@pytest.mark.parametrize("points", [[], [(1.0, 1.0)], [(1.0, 0.0), (10.0, 0.0)], [(0.0, 5.0), (1e9, 1e-9)]])
def test_curves_accept_few_and_extreme_points(points: list[tuple[float, float]]) -> None:
    for log in (False, True):
        axis = Axis("x", count_text, log=log)
        inside(curves([Series(NAME, points)], axis, axis, label=NAME, points=True))


def test_a_heat_map_shades_by_the_highest_cell() -> None:
    chart = heat_map(["a"], ["0", "1", "2"], [[0.0, 1.0, 10.0]], count_text, label="x")
    assert re.findall(r"heat h(\d)", chart) == ["0", "1", "8"]


def test_empty_charts_have_a_text() -> None:
    for chart in (
        bars([], count_text, label="x"),
        histogram([], count_text, label="x"),
        heat_map([], [], [], count_text, label="x"),
        spans([], label="x"),
        stacked_over_time([], count_text, step_s=60, label="x"),
        curves([], Axis("", count_text), Axis("", count_text), label="x"),
    ):
        assert "Nothing to draw" in chart


def test_spans_and_histograms_are_well_formed() -> None:
    inside(spans([Span(NAME, NAME, 0, 10), Span(NAME, "b", 5, 5, 1, NAME)], label=NAME, parts=("one", "two")))
    inside(histogram([(NAME, 3), ("b", 0)], count_text, label=NAME))


@given(st.floats(min_value=1e-9, max_value=1e18))
def test_ticks_cover_the_value_with_a_handful_of_steps(top: float) -> None:
    for binary in (False, True):
        marks = ticks(top, binary)
        assert marks[0] == 0 and marks[-1] >= top * 0.999 and len(marks) <= 7


def test_log_and_time_ticks_are_round() -> None:
    assert log_ticks(3, 2000) == [1, 10, 100, 1000, 10000]
    assert time_ticks(0, 6 * 3600)[1] == (3600, "01:00")
    assert len(time_ticks(0, 40 * 365 * 86400)) <= 10


def test_a_scale_maps_outside_values_to_its_ends() -> None:
    scale = Scale(1, 100, 0, 200, log=True)
    assert (scale.at(0), scale.at(10), scale.at(1e6)) == (0, 100, 200)


@pytest.mark.parametrize(
    ("low", "high", "ticks_s"),
    [
        (3600, 7 * 86400, [3600, 21600, 86400, 604800]),
        (90, 90, [60, 600]),
        (0.25, 0.25, [0.25, 1]),
        (10 * 365 * 86400, 10 * 365 * 86400, [365 * 86400, 10 * 365 * 86400]),
    ],
)
def test_durations_have_ticks_at_common_durations(low: float, high: float, ticks_s: list[float]) -> None:
    assert duration_ticks(low, high) == ticks_s
