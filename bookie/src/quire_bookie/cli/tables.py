"""Prints rows as a table or as JSON."""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import zip_longest
from typing import Annotated, Any

import typer
from rich.cells import cell_len, chop_cells

from quire_bookie.control_characters import ACTED_ON, cell_for_terminal

_GAP = "  "
_NARROWEST = 2
"""Columns of a wide character."""


class Form(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    JSON = "json"


FormOption = Annotated[Form, typer.Option("--format", help="Output format.")]


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
    numbers = [all(isinstance(cell, int | None) for cell in column) for column in zip(*rows, strict=True)]
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
        print(f"{name:<{width}}  {'-' if value is None else cell_for_terminal(str(value))}")
