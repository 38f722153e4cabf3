"""Asks before a command destroys something. Without a terminal a command refuses unless `--yes` is given."""

import sys
from typing import Annotated

import typer

from quire_bookie.errors import ConfigError

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def confirm_name(yes: bool, name: str, consequence: str) -> None:
    """Ask the user to type `name`. ConfigError, and nothing may be changed: no terminal, or another name."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"{consequence}: there is no terminal to ask on; give --yes to do it")
    typer.echo(f"{consequence}.", err=True)
    given = typer.prompt(f"Type {name} to continue", default="", show_default=False, err=True)
    if given.strip() != name:
        raise ConfigError(f"'{given.strip()}' is not {name}: nothing was changed")
