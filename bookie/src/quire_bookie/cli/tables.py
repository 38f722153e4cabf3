"""Prints what commands found in the form that `-o` names: a table, JSON, YAML or names alone."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated, Any

import typer
from rich.cells import cell_len, chop_cells

from quire_bookie.control_characters import ACTED_ON, cell_for_terminal, for_terminal
from quire_bookie.dataclass import dataclass

_GAP = "  "
_NARROWEST = 2
"""Columns of a wide character."""


class Output(StrEnum):
    """Form in which a command prints what it found. `wide`: a table with more columns; `name`: one name per line."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def for_people(self) -> bool:
        """Whether the user reads it, not a program."""
        return self in (Output.TABLE, Output.WIDE)


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of rows. `of` returns the cell of a row; `wide`: only `-o wide` shows it."""

    header: str
    of: Callable[[Any], object]
    wide: bool = False


def print_rows(
    rows: Sequence[Any], columns: Sequence[Column], output: Output, *, name: Callable[[Any], object], empty: str
) -> None:
    """Print rows. `name` returns the name of a row; `empty` is said on stderr in place of a table without rows."""
    if output.for_people:
        shown = [column for column in columns if output is Output.WIDE or not column.wide]
        if rows:
            print_table([each.header for each in shown], [[each.of(row) for each in shown] for row in rows])
        else:
            print(for_terminal(empty), file=sys.stderr)
    elif output is Output.NAME:
        for row in rows:
            print(cell_for_terminal(str(name(row))))
    else:
        print_data(rows, output)


def print_one(value: Any, facts: Mapping[str, object], output: Output, *, name: object) -> None:
    """Print one object: `facts` for people, the whole `value` as JSON or YAML, or its name."""
    if output.for_people:
        print_facts(facts)
    elif output is Output.NAME:
        print(cell_for_terminal(str(name)))
    else:
        print_data(value, output)


def print_data(value: Any, output: Output) -> None:
    """Print a value as YAML, or else as indented JSON."""
    if output is Output.YAML:
        import yaml  # 40 ms that no other form waits for

        print(for_terminal(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)), end="")
    else:
        print_json(value)


def print_item(value: Any, output: Output, *, name: object) -> None:
    """Print one value of a stream for a program: a line of JSON, a document of YAML, or the name."""
    if output is Output.YAML:
        print("---")
        print_data(value, output)
    else:
        print(cell_for_terminal(str(name)) if output is Output.NAME else json_for_terminal(value), flush=True)


def print_json(value: Any) -> None:
    """Print indented JSON on standard output."""
    print(json_for_terminal(value, indent=2))


def json_for_terminal(value: Any, indent: int | None = None) -> str:
    """Encode JSON with letters unescaped and terminal control characters escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return ACTED_ON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table that fits the terminal, or uncut if stdout is not a terminal. Numbers are right-aligned."""
    cells = [["-" if cell is None else cell_for_terminal(str(cell)) for cell in row] for row in rows]
    numbers = [
        all(isinstance(cell, int | None) for cell in column) and any(cell is not None for cell in column)
        for column in zip(*rows, strict=True)
    ]
    numbers = numbers or [False] * len(headers)
    widths = [max(map(_width, column)) for column in zip(headers, *cells, strict=True)]
    on_terminal = sys.stdout.isatty()
    if on_terminal:
        _shrink(widths, shutil.get_terminal_size().columns)
    styled = on_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    bold, plain = ("\x1b[1m", "\x1b[0m") if styled else ("", "")
    lines = [f"{bold}{line}{plain}" for line in _lines(headers, widths, numbers)]
    for row in cells:
        lines += _lines(row, widths, numbers)
    print("\n".join(lines))


def _width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    return len(text) if text.isascii() else cell_len(text)


def _shrink(widths: list[int], room: int) -> None:
    """Make the widest columns narrower until a line fits."""
    widths[:] = [min(width, room) for width in widths]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > room and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1


def _lines(row: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> list[str]:
    """Return the line of a row; several if a cell is wider than its column."""
    folded = [
        [cell] if _width(cell) <= width else chop_cells(cell, width) for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for parts in zip_longest(*folded, fillvalue=""):
        padded = [
            " " * (width - _width(part)) + part if is_number else part + " " * (width - _width(part))
            for part, width, is_number in zip(parts, widths, numbers, strict=True)
        ]
        lines.append(_GAP.join(padded).rstrip())
    return lines


def print_facts(facts: Mapping[str, object]) -> None:
    """Print one name and value per line."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        shown = {None: "-", True: "yes", False: "no"}.get(value) if isinstance(value, bool | None) else str(value)
        print(f"{name:<{width}}  {cell_for_terminal(str(shown))}")
