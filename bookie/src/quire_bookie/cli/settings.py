"""Defines the options of every command with a configuration: the file, and any setting by its key."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.errors import ConfigError

if TYPE_CHECKING:  # imported when settings are loaded; help and completion do not need it
    from quire_bookie.config.sources import Loaded, ProcessConfig

C = TypeVar("C", bound="ProcessConfig")

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="Settings: a TOML or YAML file, or BookKeeper's .conf.", envvar="QUIRE_CONFIG"),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting by its key, e.g. --set journalMaxSizeMB=64. May be repeated."),
]


def parse_settings(commands: Commands, model: "type[ProcessConfig]", given: list[str] | None) -> dict[str, Any]:
    """Parse `KEY=VALUE` strings into fields of the model. Raises ConfigError for anything else."""
    from quire_bookie.config.sources import suggestion

    fields: dict[str, Any] = {}
    for text in given or []:
        key, separator, value = text.partition("=")
        name = model.field_of(key.strip())
        if not separator:
            raise ConfigError(f"--set {text}: expected KEY=VALUE")
        if name is None:
            kinds = commands.kinds_with(key.strip())
            if kinds:
                raise ConfigError(
                    f"--set {text}: '{key}' is not a setting of this process, but of {' and '.join(kinds)}; "
                    "set it there, or remove it"
                )
            raise ConfigError(f"--set {text}: unknown setting '{key}'{suggestion(model, key.strip())}")
        fields[name] = value.strip()
    return fields


def load_settings(
    commands: Commands, model: type[C], flags: Mapping[str, Any], file: Path | None, given: list[str] | None
) -> "Loaded[C]":
    """Merge flags, `--set`, environment and file. ConfigError."""
    from quire_bookie.config.sources import load

    return load(
        model,
        flags=flags,
        assigned=parse_settings(commands, model, given),
        environment=os.environ,
        file=file,
        also_known=commands.known_keys() if file is not None else frozenset(),
    )
