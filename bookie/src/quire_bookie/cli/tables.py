"""Prints rows as a table or as JSON."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

from quire_bookie.control_characters import ACTED_ON, cell_for_terminal

UNCUT_CHARACTERS = 100_000
"""Wider than any line: output to a file or a pipe is not folded."""


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
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=UNCUT_CHARACTERS)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column, header in enumerate(headers):
        numbers = bool(rows) and all(isinstance(row[column], int | None) for row in rows)
        table.add_column(header, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else cell_for_terminal(str(cell))) for cell in row))
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_facts(facts: Mapping[str, object]) -> None:
    """Print one name and value per line."""
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        print(f"{name:<{width}}  {'-' if value is None else cell_for_terminal(str(value))}")
