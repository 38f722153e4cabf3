"""`quire completion`: prints the script that lets a shell complete commands, options and their values."""

from enum import StrEnum
from typing import Annotated

import typer

from quire_bookie.cli.commands import Commands

COMPLETE_VARIABLE = "_QUIRE_COMPLETE"
"""Set by the scripts when they ask for completions."""


class Shell(StrEnum):
    """The shells with a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def prepare() -> None:
    """Let Typer answer the scripts: it does so only for applications with its own options for them."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()


def register(commands: Commands) -> None:
    """Add `quire completion`."""

    @commands.app.command()
    def completion(shell: Annotated[Shell, typer.Argument(help="The shell that will read the script.")]) -> None:
        """Print the completion script of a shell, as for `source <(quire completion bash)`."""
        from typer.completion import get_completion_script  # type: ignore[attr-defined]  # the only way to its text

        print(get_completion_script(prog_name="quire", complete_var=COMPLETE_VARIABLE, shell=shell.value))
