"""Defines the command tree that distributions extend, command groups, and exit codes.

Each command module receives `Commands` and adds its commands. `main` builds the tree.
"""

from dataclasses import field
from importlib import import_module
from typing import TYPE_CHECKING

import typer

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from quire_bookie.config.sources import ProcessConfig

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_MISSING = 3
EXIT_DENIED = 4
EXIT_CONFLICT = 5
EXIT_NO_ANSWER = 6
EXIT_INTERRUPTED = 130


@dataclass(slots=True)
class Commands:
    """Holds what a distribution may extend: the command tree, and the kinds of processes that can be configured.

    A kind is given as `module:class` and imported when `quire config` needs it.
    """

    app: typer.Typer
    config_kinds: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    """Whether the other distributions have added theirs."""

    def add_others(self) -> None:
        """Let the other installed distributions add their commands and kinds. A second call does nothing."""
        if self.complete:
            return
        self.complete = True
        # Imported here: a bookie does not need it, and the import is a twentieth of the bookie's start.
        from importlib.metadata import entry_points

        for entry in sorted(entry_points(group="quire.commands"), key=lambda e: e.name):
            entry.load()(self)

    def config_model(self, kind: str) -> "type[ProcessConfig]":
        """Return the settings class of a kind of process; ConfigError lists the known kinds."""
        from quire_bookie.config.sources import ProcessConfig

        if kind not in self.config_kinds:
            self.add_others()
        if kind not in self.config_kinds:
            raise ConfigError(f"process '{kind}': unknown; give one of {', '.join(sorted(self.config_kinds))}")
        module, _, name = self.config_kinds[kind].partition(":")
        model = getattr(import_module(module), name)
        if not issubclass(model, ProcessConfig):
            raise TypeError(f"{module}:{name} is not a ProcessConfig")
        found: type[ProcessConfig] = model
        return found

    def known_keys(self) -> frozenset[str]:
        """Return every key of every kind, in both spellings: several processes may share one file."""
        self.add_others()
        keys: set[str] = set()
        for kind in self.config_kinds:
            model = self.config_model(kind)
            keys |= {spelling for name in model.model_fields for spelling in (name, model.key_of(name))}
        return frozenset(keys)

    def kinds_with(self, key: str) -> list[str]:
        """Return the kinds of process that have this key, in either spelling."""
        self.add_others()
        return [kind for kind in sorted(self.config_kinds) if self.config_model(kind).field_of(key) is not None]


def new_app(help_text: str) -> typer.Typer:
    """Create a command group with plain help and plain tracebacks."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
