"""`quire jobs list` and `quire jobs run`: arguments, output and exit codes. Each kind's module does the work.

Exit codes of a run, for users and for schedulers that may restart it: 0 all done; 1 something failed and a retry may
help; 2 wrong usage, wrong parameters included; 3 something failed and a retry would not help.
"""

import contextlib
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from quire_bookie.cli.commands import EXIT_FAILED, Commands, new_app
from quire_bookie.cli.output import say
from quire_bookie.cli.tables import json_for_terminal, print_facts, print_table
from quire_bookie.errors import ConfigError, QuireError

if TYPE_CHECKING:
    from quire_jobs.job import JobParameters, Summary
    from quire_jobs.main.kinds import Kind

EXIT_RETRY_USELESS = 3
IN_ENVIRONMENT = "set it in the environment (AWS_SECRET_ACCESS_KEY, ...) or in spark-defaults.conf instead"
T = TypeVar("T")
P = TypeVar("P", bound="JobParameters")
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON, for a failure too.")]


def register(commands: Commands) -> None:
    """Add `quire jobs`."""
    app = new_app("Run jobs on Spark: offload to object storage, and analytics.")
    commands.app.add_typer(app, name="jobs")

    @app.command("list")
    def list_(
        kind: Annotated[str | None, typer.Argument(help="Show only this kind, with all its parameters.")] = None,
        as_json: AsJson = False,
    ) -> None:
        """List the kinds of jobs, or the parameters of one."""
        _list(kind, as_json)

    @app.command()
    def run(
        kind: Annotated[str, typer.Argument(help="See `quire jobs list`.")],
        parameters: Annotated[
            list[str] | None,
            typer.Argument(metavar="[NAME=VALUE]...", help="Parameters; separate several values by commas."),
        ] = None,
        local: Annotated[bool, typer.Option("--local", help="Run on this machine, on all its cores.")] = False,
        master: Annotated[
            str | None,
            typer.Option(help="Run on this Spark: local[2], spark://host:port, k8s://...", envvar="QUIRE_SPARK_MASTER"),
        ] = None,
        file: Annotated[
            Path | None, typer.Option("--params", help="JSON or YAML file of parameters; arguments override it.")
        ] = None,
        metadata: Annotated[
            str | None,
            typer.Option(
                help="Metadata store of the cluster, etcd://host:port,..., or a broker's HTTP address.",
                envvar="QUIRE_METADATA",
            ),
        ] = None,
        http: Annotated[str | None, typer.Option(help="HTTP address of a broker.", envvar="QUIRE_HTTP")] = None,
        slot: Annotated[
            str | None,
            typer.Option(help="Scheduled time, RFC 3339; one slot is one run. [now]"),
        ] = None,
        conf: Annotated[list[str] | None, typer.Option(help="Spark setting KEY=VALUE; may be repeated.")] = None,
        as_json: AsJson = False,
        termination_log: Annotated[
            Path | None,
            typer.Option(help="Write the outcome to this file, as JSON of at most 4096 bytes."),
        ] = None,
    ) -> int:
        """Run a job to its end. Exit codes: 0 all done; 1 something failed, a retry may help; 2 wrong usage; 3
        something failed, a retry would not help."""

        def work() -> tuple[int, dict[str, Any]]:
            chosen = _as_cli_errors(lambda: _kind(kind))
            given = {} if file is None else read_file(file)
            given |= {name: value for name, value in (("metadata", metadata), ("http", http)) if value is not None}
            given |= assigned(chosen.parameters, parameters or [])
            moment, settings = moment_of(slot), pairs(conf or [], "--conf")
            return _run(chosen, given, _master(local, master), moment, settings, as_json)

        return _report(kind, as_json, termination_log, work)


def _kind(name: str) -> "Kind":
    from quire_jobs.main.kinds import load_kind

    return load_kind(name)


class _FinalError(QuireError):
    """The run did nothing, and a retry would end in the same way."""


def _as_cli_errors(ask: Callable[[], T]) -> T:
    """Return the result of `ask`. Turn errors of jobs into errors that `quire` prints in one line with its exit
    codes."""
    from quire_jobs.errors import JobOptionsError, QuireJobError, retry_helps

    try:
        return ask()
    except JobOptionsError as error:
        raise ConfigError(str(error)) from error
    except QuireJobError as error:
        raise (QuireError if retry_helps(error) else _FinalError)(str(error)) from error


def _report(kind: str, as_json: bool, log: Path | None, work: Callable[[], tuple[int, dict[str, Any]]]) -> int:
    """Run `work` and return the exit code. Write the outcome, also a failure, to `log`; with `--json` print a
    failure."""
    from quire_jobs.main.termination_log import write_outcome

    def failed(reason: str, retry_helps: bool) -> dict[str, Any]:
        row = {"kind": kind, "outcome": "failed", "error": reason, "retry_helps": retry_helps}
        if as_json:
            print(json_for_terminal(row))
        return row

    row: dict[str, Any] = {}
    try:
        code, row = work()
    except _FinalError as error:
        row = failed(str(error), retry_helps=False)
        say(f"quire: {error}", err=True)
        return EXIT_RETRY_USELESS
    except QuireError as error:
        row = failed(str(error), retry_helps=not isinstance(error, ConfigError))
        raise
    except (SystemExit, KeyboardInterrupt):
        row = failed("stopped by a signal", retry_helps=True)
        raise
    finally:
        if log is not None and row and (fault := write_outcome(log, row)):
            say(f"quire: {fault}", err=True)
    return code


# ---- user input
def read_file(path: Path) -> dict[str, Any]:
    """Return the parameters in a JSON or YAML file (`-`: standard input). Raises ConfigError."""
    import yaml

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        value = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--params {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--params {path}: neither JSON nor YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"--params {path}: not a mapping; give parameters by name")
    return value


def pairs(given: list[str], where: str) -> dict[str, str]:
    """Return KEY=VALUE texts as a dict. Raises ConfigError."""
    found: dict[str, str] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            shown = re.split(r"[\s:=]", text, maxsplit=1)[0]  # the rest may be a secret
            raise ConfigError(f"{where} {shown}: expected {'KEY' if where.startswith('-') else 'NAME'}=VALUE")
        found[key.strip()] = value.strip()
    return found


def assigned(model: "type[JobParameters]", given: list[str]) -> dict[str, Any]:
    """Return NAME=VALUE arguments as parameters; a value of a list parameter is split at commas. Raises ConfigError."""
    from quire_jobs.main.kinds import is_list

    return {
        key: [part.strip() for part in value.split(",") if part.strip()] if is_list(model, key) else value
        for key, value in pairs(given, "parameter").items()
    }


def moment_of(slot: str | None) -> datetime | None:
    """Return the time of `--slot`, in UTC. Raises ConfigError."""
    if slot is None:
        return None
    try:
        moment = datetime.fromisoformat(slot)
    except ValueError as error:
        raise ConfigError(f"--slot {slot}: not a time; give one such as 2026-01-31T04:00:00Z") from error
    if moment.tzinfo is None:
        raise ConfigError(f"--slot {slot}: the time zone is missing; give one, e.g. {slot}Z")
    return moment.astimezone(UTC)


def slot_of(moment: datetime | None) -> str:
    """Return the slot as it appears in run ids, in UTC to the second; None means the current time."""
    return (moment or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")


def with_slot(parameters: P, kind: str, moment: datetime | None) -> P:
    """Return the parameters with a run id and with `asOf` set to the slot, so that a later repetition has the same
    result.

    The run id is computed from the given parameters only: with the slot's time in them, no two slots would share a job.
    """
    from quire_jobs.job import run_id_of

    added: dict[str, Any] = {}
    if not parameters.run_id:
        added["run_id"] = run_id_of(kind, parameters, slot_of(moment))
    if moment is not None and "as_of" in type(parameters).model_fields and getattr(parameters, "as_of", None) is None:
        added["as_of"] = moment
    return parameters.model_copy(update=added)


def _master(local: bool, master: str | None) -> str | None:
    import os

    if local and master:
        raise ConfigError(f"--local and --master {master}: give only one of them")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which has chosen the master
    if not (local or master or submitted):
        raise ConfigError("no Spark chosen: give --local, or --master with the address of a Spark")
    return "local[*]" if local else master


# ---- running
def _run(
    kind: "Kind",
    given: Mapping[str, Any],
    master: str | None,
    slot: datetime | None,
    conf: Mapping[str, str],
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the outcome as JSON. Neither contains a secret of `conf`."""
    from quire_jobs.job import parse_parameters
    from quire_jobs.main.secret_settings import holds_secret, secrets_of
    from quire_jobs.main.shown_progress import progress_on
    from quire_jobs.main.spark_session import spark_faults, spark_reason, start_spark
    from quire_jobs.main.traced_run import traced_run

    def work() -> "Summary":
        parameters = with_slot(parse_parameters(kind.parameters, given), kind.name, slot)
        run_id = parameters.run_id
        with _terminable(), progress_on(sys.stderr) as shown, traced_run(shown, kind.name, run_id) as progress:
            progress.note(f"run {run_id}")
            for key in sorted(filter(holds_secret, conf)):
                progress.note(f"--conf {key}: its value is visible in the process list; {IN_ENVIRONMENT}")
            spark = start_spark(run_id, master, conf, quick=parameters.computes_little)
            progress.spark_started()
            try:
                return kind.run(spark, parameters, progress).model_copy(update={"run_id": run_id})
            except spark_faults() as error:
                raise QuireError(f"Spark: {spark_reason(str(error))}") from error
            finally:
                spark.stop()

    began = datetime.now(UTC)
    summary = _without_secrets(lambda: _as_cli_errors(work), secrets_of(conf))
    seconds = (datetime.now(UTC) - began).total_seconds()
    row = {"outcome": summary.outcome.value, "seconds": round(seconds, 3)} | summary.model_dump(mode="json")
    _show(summary, seconds, row if as_json else None)
    return exit_code(summary), row


def _without_secrets(ask: Callable[[], "Summary"], secrets: Sequence[str]) -> "Summary":
    """Return the summary of `ask`, or raise its error, without the secrets: Spark quotes settings that it rejects."""
    from quire_jobs.main.secret_settings import redacted

    if not secrets:
        return ask()
    try:
        summary = ask()
    except QuireError as error:
        kind = next(each for each in (ConfigError, _FinalError, QuireError) if isinstance(error, each))
        raise kind(redacted(str(error), secrets)) from None  # a chained cause would show the secret
    shown: dict[str, Any] = redacted(summary.model_dump(mode="json"), secrets)
    return type(summary).model_validate(shown | {"done": summary.done})


def exit_code(summary: "Summary") -> int:
    """Return the exit code of a finished run."""
    from quire_jobs.job import Outcome

    if summary.outcome is Outcome.SUCCEEDED:
        return 0
    return EXIT_FAILED if any(problem.retry_helps for problem in summary.problems) else EXIT_RETRY_USELESS


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM unwind like an interrupt, so that Spark stops and the progress bar ends.

    Without a handler, the first process of a container ignores the signal.
    """

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(summary: "Summary", seconds: float, row: Mapping[str, Any] | None) -> None:
    if row is not None:
        print(json_for_terminal(row))
        return
    facts: dict[str, object] = {"run": summary.run_id, "outcome": summary.outcome.value, "seconds": round(seconds, 1)}
    print_facts(facts | {name.replace("_", " "): value for name, value in summary.counts.items()})
    for url in summary.outputs:
        say(f"written: {url}")
    for note in summary.notes:
        say(note)
    if summary.problems:
        print()
        rows = [(each.subject, each.reason, "yes" if each.retry_helps else "no") for each in summary.problems]
        print_table(("not done", "reason", "retry helps"), rows)


def _list(name: str | None, as_json: bool) -> None:
    from quire_jobs.main.kinds import MODULES, load_kind, shown_parameters

    kinds = _as_cli_errors(lambda: [load_kind(each) for each in ([name] if name else sorted(MODULES))])
    if as_json:
        rows = [
            {
                "kind": kind.name,
                "text": kind.text,
                "parameters": [
                    {"name": each.name, "type": each.type, "default": each.default, "text": each.text}
                    for each in shown_parameters(kind.parameters)
                ],
            }
            for kind in kinds
        ]
        print(json_for_terminal(rows))
    elif name:
        print(f"{kinds[0].text}\n")
        shown = shown_parameters(kinds[0].parameters)
        print_table(
            ("parameter", "type", "default", "meaning"),
            [(each.name, each.type, "(needed)" if each.default is None else each.default, each.text) for each in shown],
        )
    else:
        parameters = [", ".join(each.name for each in shown_parameters(kind.parameters)) for kind in kinds]
        print_table(
            ("kind", "does", "parameters"),
            [(kind.name, kind.text, names) for kind, names in zip(kinds, parameters, strict=True)],
        )
