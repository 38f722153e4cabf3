"""Renders a report as one HTML file without dependencies: no scripts, fonts or images from elsewhere. Pure.

Its content security policy forbids scripts and all connections, so that even injected markup would have no effect.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from quire_jobs.analytics.report.markup import NOTHING, Child, Markup, join, shortened, tag
from quire_jobs.analytics.report.style import STYLE
from quire_jobs.analytics.report.units import time_text

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_ADVICE_UNFOLDED: Final = 8
"""Number of the most urgent pieces of advice that are always visible, so that charts are near the top."""
ROWS_MAX: Final = 200
"""Maximum of rows of a table in a report; the table files have all rows."""


class Level(Enum):
    """Urgency of a piece of advice."""

    GOOD = "good"
    WATCH = "watch"
    ACT = "act"


_MARKS = {Level.GOOD: "✓", Level.WATCH: "!", Level.ACT: "✕"}
_LEVEL_LABELS = {Level.GOOD: "good", Level.WATCH: "watch", Level.ACT: "act"}


@dataclass(frozen=True, slots=True)
class Advice:
    """An observation and a recommended action."""

    level: Level
    seen: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """An important number with its unit, and a line below it."""

    name: str
    value: str
    below: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A number in a table: aligned to the right."""

    shown: str


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows; strings are names, `Cell`s are numbers. `more`: number of omitted rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    more: int = 0
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, an explanation, a chart, a table."""

    title: str
    words: str = ""
    chart: Markup = NOTHING
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A report. `subject`: the analysed data; `made_s`: the time of the analysis."""

    title: str
    subject: str
    made_s: float
    advice: Sequence[Advice] = ()
    tiles: Sequence[Tile] = ()
    sections: Sequence[Section] = ()
    notes: Sequence[str] = field(default_factory=tuple)


def render(page: Page) -> str:
    """Return the whole file."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{page.title} – Quire"),
        tag("style", STYLE),
    )
    body = tag(
        "body",
        tag(
            "main",
            tag(
                "header",
                tag("p", "Quire", class_="brand"),
                tag("h1", page.title),
                tag("p", shortened(page.subject, 300), class_="subject"),
                tag("p", f"Made {time_text(page.made_s)}", class_="made"),
            ),
            _tiles(page.tiles),
            _advice(page.advice),
            *(_section(one) for one in page.sections),
            _notes(page.notes),
        ),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _advice(advice: Sequence[Advice]) -> Markup:
    if not advice:
        return NOTHING
    order = [Level.ACT, Level.WATCH, Level.GOOD]
    rows = [
        tag(
            "li",
            tag("span", _MARKS[one.level], class_="mark", role="img", aria_label=_LEVEL_LABELS[one.level]),
            tag("div", tag("p", one.seen), tag("p", one.do, class_="do") if one.do else None),
            class_=one.level.value,
        )
        for one in sorted(advice, key=lambda each: order.index(each.level))
    ]
    first, rest = rows[:_ADVICE_UNFOLDED], rows[_ADVICE_UNFOLDED:]
    return tag(
        "section",
        tag("h2", "What to do next"),
        tag("ul", *first, class_="advice"),
        tag("details", tag("summary", f"{len(rest)} more"), tag("ul", *rest, class_="advice")) if rest else None,
    )


def _tiles(tiles: Sequence[Tile]) -> Markup:
    if not tiles:
        return NOTHING
    return tag(
        "dl",
        *(
            tag(
                "div",
                tag("dt", tile.name),
                tag("dd", tile.value),
                tag("dd", tile.below, class_="below") if tile.below else None,
            )
            for tile in tiles
        ),
        class_="tiles",
    )


def _section(section: Section) -> Markup:
    return tag(
        "section",
        tag("h2", section.title),
        tag("p", section.words, class_="words") if section.words else None,
        tag("figure", section.chart) if section.chart else None,
        None if section.table is None else _table(section.table),
    )


def _table(table: Table) -> Markup:
    if not table.rows:
        return tag("p", "No rows.", class_="empty")
    head = tag("tr", *(tag("th", name, scope="col", class_=_side(table, at)) for at, name in enumerate(table.columns)))
    rows = [tag("tr", *(_cell(cell) for cell in row)) for row in table.rows[:ROWS_MAX]]
    more = table.more + max(0, len(table.rows) - ROWS_MAX)
    whole = join(
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll"),
        tag("p", f"{more:,} more in the table files.", class_="empty") if more else None,
    )
    if not table.folded:
        return whole
    return tag("details", tag("summary", f"The numbers ({len(table.rows) + table.more:,} rows)"), whole)


def _side(table: Table, at: int) -> str | None:
    return "number" if isinstance(table.rows[0][at], Cell) else None


def _cell(cell: str | Cell) -> Markup:
    if isinstance(cell, Cell):
        return tag("td", cell.shown, class_="number")
    return tag("td", shortened(cell), title=cell if len(cell) > 40 else None)


def _notes(notes: Sequence[str]) -> Markup:
    if not notes:
        return NOTHING
    rows: list[Child] = [tag("li", note) for note in notes]
    return tag("section", tag("h2", "Method"), tag("ul", *rows, class_="notes"))
