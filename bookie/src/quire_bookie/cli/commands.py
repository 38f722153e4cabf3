"""The command tree that distributions extend, groups of commands, and exit codes.

Each command module takes `Commands` and adds itself. `main` builds the tree.
"""

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

import typer

from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from quire_bookie.config.sources import ProcessConfig

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(slots=True)
class Commands:
    """What a distribution may extend: the command tree, and the kinds of process that can be configured.

    A kind is given as `module:class`, imported when `quire config` needs it.
    """

    app: typer.Typer
    config_kinds: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    """The other distributions have added theirs."""

    def add_others(self) -> None:
        """Have the other installed distributions add their commands and kinds. A second call does nothing."""
        if self.complete:
            return
        self.complete = True
        # Here and not above: a bookie's start has no use for it, and it takes a twentieth of that.
        from importlib.metadata import entry_points

        for entry in sorted(entry_points(group="quire.commands"), key=lambda e: e.name):
            entry.load()(self)

    def config_model(self, kind: str) -> "type[ProcessConfig]":
        """The settings of a kind of process; ConfigError names the kinds that there are."""
        from quire_bookie.config.sources import ProcessConfig

        if kind not in self.config_kinds:
            self.add_others()
        if kind not in self.config_kinds:
            raise ConfigError(f"no process is called '{kind}'; there are: {', '.join(sorted(self.config_kinds))}")
        module, _, name = self.config_kinds[kind].partition(":")
        model = getattr(import_module(module), name)
        if not issubclass(model, ProcessConfig):
            raise TypeError(f"{module}:{name} is no ProcessConfig")
        found: type[ProcessConfig] = model
        return found

    def known_keys(self) -> frozenset[str]:
        """Every key of every kind, in both spellings: one file may serve several processes."""
        self.add_others()
        keys: set[str] = set()
        for kind in self.config_kinds:
            model = self.config_model(kind)
            keys |= {spelling for name in model.model_fields for spelling in (name, model.key_of(name))}
        return frozenset(keys)


def new_app(help_text: str) -> typer.Typer:
    """A group of commands with plain help and without tracebacks dressed up."""
    return typer.Typer(
        help=help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
