"""The `quire` command: collects the subcommands of every installed distribution and prints each error as one line.

Other distributions add theirs through the entry-point group `quire.commands`; each entry is a function that takes the
`Commands`. A module is imported only when its command runs, and other distributions are searched only if the command is
not one of ours: `quire --help` answers at once, and a bookie does not load modules that it never uses.
"""

import gc
import logging
import os
import platform
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from quire_bookie import __version__
from quire_bookie.cli.commands import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, Commands, new_app
from quire_bookie.cli.output import say
from quire_bookie.cli.profiles import PROFILE_VARIABLE, use_profile
from quire_bookie.cli.refusals import exit_code_of
from quire_bookie.env.file_modes import keep_new_files_private
from quire_bookie.errors import QuireError

_OWN = ("--version", "autorecovery", "bookie", "cluster", "completion", "doctor", "metadata", "profile", "version")

# Typer keeps click's exceptions under a private name; its public subclass leads to their root.
UsageFault: type[typer.BadParameter] = next(k for k in typer.BadParameter.__mro__ if k.__name__ == "ClickException")


def build(arguments: Sequence[str] = ()) -> Commands:
    """Build the command tree for these arguments: only ours if they name one of these, else all installed."""
    from quire_bookie.cli import autorecovery, bookie, cluster, completion, doctor, ledger, metadata, profiles, show

    commands = Commands(new_app("Quire: a durable log store that speaks BookKeeper and Pulsar."))
    _add_root(commands)
    bookie.register(commands)
    autorecovery.register(commands)
    cluster.register(commands)
    ledger.register(commands)
    metadata.register(commands)
    show.register(commands)
    profiles.register(commands)
    completion.register(commands)
    doctor.register(commands)
    if not (arguments and arguments[0] in _OWN):
        commands.add_others()
    if completion.COMPLETE_VARIABLE in os.environ:
        completion.prepare()
    return commands


def _add_root(commands: Commands) -> None:
    """Add the options of `quire` itself, and `quire version`."""

    def print_version(wanted: bool) -> None:
        if wanted:
            say(f"quire {__version__}")
            raise typer.Exit

    @commands.app.callback()
    def root(
        context: typer.Context,
        profile: Annotated[
            str | None, typer.Option(help="Addresses and credentials: see `quire profile`.", envvar=PROFILE_VARIABLE)
        ] = None,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=print_version, is_eager=True)
        ] = False,
    ) -> None:
        if profile:
            context.call_on_close(use_profile(profile, os.environ))

    @commands.app.command()
    def version(
        verbose: Annotated[
            bool, typer.Option("--verbose", "-v", help="Also Python, the system, and whether native steps are active.")
        ] = False,
    ) -> None:
        """Print the version; without -v the same as --version."""
        if not verbose:
            print_version(True)
        from quire_bookie.bulk import IS_NATIVE

        say(f"quire {__version__}")
        say(f"Python {platform.python_version()} on {platform.system()} {platform.release()} {platform.machine()}")
        if IS_NATIVE:
            say("native steps: active")
        else:
            reason = "QUIRE_NATIVE=0" if os.environ.get("QUIRE_NATIVE") == "0" else "the module is not installed"
            say(f"native steps: not active, {reason}")


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Expected errors are one line on stderr."""
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        result = build(arguments).app(args=arguments, prog_name="quire", standalone_mode=False)
    except UsageFault as fault:
        if type(fault).__name__ == "NoArgsIsHelpError":
            print(fault.format_message(), file=sys.stderr)  # a group without a subcommand prints its help
            return EXIT_USAGE
        command = fault.ctx.command_path if fault.ctx is not None else "quire"
        return _fail(f"{fault.format_message().rstrip('.?')}; see `{command} --help`", EXIT_USAGE)
    except QuireError as error:
        return _fail(str(error), exit_code_of(error))
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; Python would report an error at exit
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    say(f"quire: {message}", err=True)
    return code


def main() -> None:
    """Entry point of the console script."""
    keep_new_files_private()
    # Imported modules are never freed: collecting garbage among them again and again takes a tenth of a start.
    gc.set_threshold(50_000, 20, 50)
    # Pydantic, which also parses the command line, would search every installed distribution for plugins, which takes
    # another tenth. We have none; a user who has some sets the variable.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    code = run()
    if "obstore" in sys.modules:
        _leave_at_once(code)
    sys.exit(code)


def _leave_at_once(code: int) -> NoReturn:
    """End the process without taking the interpreter apart.

    Threads of obstore's runtime outlive its last call. One that asks for the interpreter's lock while Python ends
    aborts the process: a backup that had succeeded ended with SIGABRT.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # the reader is gone, or `run` has closed the stream for that reason
            code = code or EXIT_FAILED
    os._exit(code)
