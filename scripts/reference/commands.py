"""The commands of `quire`, each with the help that it prints."""

from collections.abc import Iterator
from typing import Any

import typer

from quire_bookie.cli.main import build
from scripts.reference.tables import GENERATED

WIDTH = 110
_INTRODUCTION = """
What `--help` of each command prints. [The manual](../cli.md) has examples, exit codes and permissions;
[settings](../configuration.md) have a page of their own, and so has [`kubectl quire`](../kubernetes/kubectl.md).
"""


def page() -> str:
    """Return the page."""
    lines = ["# Reference of the commands", GENERATED, _INTRODUCTION]
    root: Any = typer.main.get_command(build().app)
    lines += _described(
        root, root.context_class(root, info_name="quire", terminal_width=WIDTH, **root.context_settings), 2
    )
    return "\n".join(lines)


def _described(command: Any, context: Any, level: int) -> Iterator[str]:
    """Yield the help of a command and of those below it."""
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"{'#' * level} {context.command_path}\n\n```text\n{text}\n```\n"
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        below = command.get_command(context, name)
        if not below.hidden:
            nested = below.context_class(below, info_name=name, parent=context, terminal_width=WIDTH)
            yield from _described(below, nested, min(level + 1, 4))
