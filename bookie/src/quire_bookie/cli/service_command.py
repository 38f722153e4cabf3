"""Runs the steps that all service commands share: signals, settings, log, the service until its end.

Owns no service: the caller names its kind of process and its serving function. Both are imported while signals are
handled, the settings first: a wrong setting is refused before the long imports of the service.
"""

import gc
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.early_signals import early_signals
from quire_bookie.cli.service_options import EventLoop, LogFormat, LogLevel
from quire_bookie.cli.settings import load_settings
from quire_bookie.dataclass import dataclass

if TYPE_CHECKING:  # imported when settings are loaded
    from quire_bookie.config.sources import ProcessConfig

log = logging.getLogger("quire.process")
_MISSED = "%s: no effect: %s: settings of other kinds of process, which this one does not have"


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Holds the options that all these commands have: file and `--set` as given, event loop, log level and format."""

    config: Path | None
    assigned: list[str] | None
    event_loop: EventLoop
    log_level: LogLevel
    log_format: LogFormat


def run_command(
    commands: Commands, kind: str, service: str, flags: Mapping[str, Any], options: ServiceOptions
) -> NoReturn:
    """Serve until a signal or until the service ends; raises typer.Exit with the exit code.

    `kind` is one of `commands.config_kinds`; `service` names, as `module:function`, an async function that takes the
    settings and the event that stops it, and returns the exit code. ConfigError, and errors of the service.
    """
    with early_signals() as early:
        # Imported here: the help of these commands does not need it.
        with _lasting():
            from quire_bookie.cli.process import run_service, set_up_log
            from quire_bookie.env.open_files import Shares, raise_open_files

            files_max = raise_open_files()
            loaded = load_settings(commands, commands.config_model(kind), flags, options.config, options.assigned)
            set_up_log(options.log_level, options.log_format)
            without_effect, unknown = loaded.config.without_effect(loaded.ignored)
            for line in without_effect:
                log.warning("%s: %s", options.config, line)
            if unknown:
                named = ", ".join(_with_suggestion(type(loaded.config), key) for key in unknown)
                log.warning("%s: unknown to Quire, ignored: %s", options.config, named)
            if missed := loaded.config.missed(loaded.of_others):
                log.warning(_MISSED, options.config, ", ".join(missed))
            for line in loaded.config.doubts:
                log.warning("%s", line)
            for variable, meant in loaded.misspelled.items():
                log.warning("the environment variable %s has no effect; did you mean %s?", variable, meant)
            log.info("connections may take %d of %d handles (ulimit -n)", Shares.of(files_max).clients, files_max)
            module, _, name = service.partition(":")
            serve = getattr(import_module(module), name)
        code = run_service(lambda stop: serve(loaded.config, stop), options.event_loop, early)
    raise typer.Exit(code)


def _with_suggestion(model: "type[ProcessConfig]", key: str) -> str:
    """Return an unknown key of a .conf file, with the setting of which it is almost the name."""
    from quire_bookie.config.sources import ALMOST, closest

    meant = closest(model, key, ALMOST)
    return key if meant is None else f"{key} (did you mean '{meant}'?)"


@contextmanager
def _lasting() -> Iterator[None]:
    """Freeze objects created inside: never collect them, neither now (a twentieth of a start) nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
