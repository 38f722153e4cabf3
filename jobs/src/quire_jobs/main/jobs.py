"""`quire jobs list` and `quire jobs run`. Owns arguments, output and exit codes; what a kind does is in its module.

Exit codes of a run are for people and for what starts it again: 0 all is done; 1 something is not, and a retry may
help; 2 wrong usage, parameters among it; 3 something is not done and a retry would not help.
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

from quire_bookie.cli.main import EXIT_FAILED, Commands, new_app
from quire_bookie.cli.output import say
from quire_bookie.cli.tables import json_for_terminal, print_facts, print_table
from quire_bookie.errors import ConfigError, QuireError

if TYPE_CHECKING:
    from quire_jobs.job import JobParameters, Summary
    from quire_jobs.main.kinds import Kind

EXIT_RETRY_USELESS = 3
IN_ENVIRONMENT = "rather set it in the environment (AWS_SECRET_ACCESS_KEY, ...) or in spark-defaults.conf"
T = TypeVar("T")
P = TypeVar("P", bound="JobParameters")
AsJson = Annotated[bool, typer.Option("--json", help="One line of JSON on standard output, also of a failure.")]


def register(commands: Commands) -> None:
    """Add `quire jobs`."""
    app = new_app("Run jobs on Spark: offload to object storage, analytics.")
    commands.app.add_typer(app, name="jobs")

    @app.command("list")
    def list_(
        kind: Annotated[str | None, typer.Argument(help="Only this kind, with all its parameters.")] = None,
        as_json: AsJson = False,
    ) -> None:
        """List the kinds of jobs, or the parameters of one."""
        _list(kind, as_json)

    @app.command()
    def run(
        kind: Annotated[str, typer.Argument(help="See `quire jobs list`.")],
        parameters: Annotated[
            list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Parameters; several values: A,B.")
        ] = None,
        local: Annotated[bool, typer.Option("--local", help="On this machine, on all its cores.")] = False,
        master: Annotated[
            str | None,
            typer.Option(help="This Spark: local[2], spark://host:port, k8s://...", envvar="QUIRE_SPARK_MASTER"),
        ] = None,
        file: Annotated[
            Path | None, typer.Option("--params", help="Parameters from a JSON or YAML file; arguments count more.")
        ] = None,
        metadata: Annotated[
            str | None, typer.Option(help="The cluster's etcd: etcd://host:port,...", envvar="QUIRE_METADATA")
        ] = None,
        http: Annotated[str | None, typer.Option(help="HTTP address of a broker.", envvar="QUIRE_HTTP")] = None,
        slot: Annotated[
            str | None,
            typer.Option(help="Time of the schedule, RFC 3339: one slot is one run. [now]"),
        ] = None,
        conf: Annotated[list[str] | None, typer.Option(help="Setting of Spark, KEY=VALUE. May be repeated.")] = None,
        as_json: AsJson = False,
        termination_log: Annotated[
            Path | None,
            typer.Option(help="File that gets the outcome, as JSON of at most 4096 bytes."),
        ] = None,
    ) -> int:
        """Run a job to its end. Exit code 0: all is done; 1: not all, a retry may help; 2: wrong usage; 3: not all,
        and a retry would not help."""

        def work() -> tuple[int, dict[str, Any]]:
            chosen = _asked(lambda: _kind(kind))
            given = {} if file is None else read_file(file)
            given |= {name: value for name, value in (("metadata", metadata), ("http", http)) if value is not None}
            given |= assigned(chosen.parameters, parameters or [])
            moment, settings = moment_of(slot), pairs(conf or [], "--conf")
            return _run(chosen, given, _master(local, master), moment, settings, as_json)

        return _told(kind, as_json, termination_log, work)


def _kind(name: str) -> "Kind":
    from quire_jobs.main.kinds import load_kind

    return load_kind(name)


class _FinalError(QuireError):
    """Nothing was done, and the same again ends the same way."""


def _asked(ask: Callable[[], T]) -> T:
    """Do something; errors of jobs become those that `quire` shows in one line, with its exit codes."""
    from quire_jobs.errors import JobOptionsError, QuireJobError, retry_helps

    try:
        return ask()
    except JobOptionsError as error:
        raise ConfigError(str(error)) from error
    except QuireJobError as error:
        raise (QuireError if retry_helps(error) else _FinalError)(str(error)) from error


def _told(kind: str, as_json: bool, log: Path | None, work: Callable[[], tuple[int, dict[str, Any]]]) -> int:
    """Run. The outcome, of a failure too, is left in `log`; a failure is told on standard output with `--json`."""
    from quire_jobs.main.termination_log import leave

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
        row = failed("it was ended from outside, by a signal", retry_helps=True)
        raise
    finally:
        if log is not None and row and (fault := leave(log, row)):
            say(f"quire: {fault}", err=True)
    return code


# ---- what a person gave
def read_file(path: Path) -> dict[str, Any]:
    """Parameters out of a JSON or YAML file (`-`: standard input). ConfigError."""
    import yaml

    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        value = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--params {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"--params {path}: neither JSON nor YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"--params {path}: expected an object of parameters by name")
    return value


def pairs(given: list[str], where: str) -> dict[str, str]:
    """KEY=VALUE texts. ConfigError."""
    found: dict[str, str] = {}
    for text in given:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            shown = re.split(r"[\s:=]", text, maxsplit=1)[0]  # what stands behind may be a secret
            raise ConfigError(f"{where} {shown}: expected {'KEY' if where.startswith('-') else 'NAME'}=VALUE")
        found[key.strip()] = value.strip()
    return found


def assigned(model: "type[JobParameters]", given: list[str]) -> dict[str, Any]:
    """NAME=VALUE arguments as parameters; what takes several values is cut at commas. ConfigError."""
    from quire_jobs.main.kinds import is_list

    return {
        key: [part.strip() for part in value.split(",") if part.strip()] if is_list(model, key) else value
        for key, value in pairs(given, "parameter").items()
    }


def moment_of(slot: str | None) -> datetime | None:
    """Of `--slot`, in UTC. ConfigError."""
    if slot is None:
        return None
    try:
        moment = datetime.fromisoformat(slot)
    except ValueError as error:
        raise ConfigError(f"--slot {slot}: expected a time, e.g. 2026-01-31T04:00:00Z") from error
    if moment.tzinfo is None:
        raise ConfigError(f"--slot {slot}: say the time zone, e.g. {slot}Z")
    return moment.astimezone(UTC)


def slot_of(moment: datetime | None) -> str:
    """A slot as it stands in names of runs, in UTC to the second; now where none was given."""
    return (moment or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")


def of_slot(parameters: P, kind: str, moment: datetime | None) -> P:
    """With the run's name, and judging as of the slot: whoever repeats it an hour later judges by the same time.

    The name follows from what was given alone: with the slot's time in it no two slots would be of one job.
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
        raise ConfigError(f"--local and --master {master}: one of the two says where the job runs")
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which knows where
    if not (local or master or submitted):
        raise ConfigError("say where the job runs: --local, or --master with the address of a Spark")
    return "local[*]" if local else master


# ---- doing
def _run(
    kind: "Kind",
    given: Mapping[str, Any],
    master: str | None,
    slot: datetime | None,
    conf: Mapping[str, str],
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Exit code, and the outcome for programs. Neither shows a secret out of `conf`."""
    from quire_jobs.job import parse_parameters
    from quire_jobs.main.secret_settings import holds_secret, secrets_of
    from quire_jobs.main.shown_progress import progress_on
    from quire_jobs.main.spark_session import spark_faults, spark_reason, start_spark

    def work() -> "Summary":
        parameters = of_slot(parse_parameters(kind.parameters, given), kind.name, slot)
        with _terminable(), progress_on(sys.stderr) as progress:
            progress.note(f"run {parameters.run_id}")
            for key in sorted(filter(holds_secret, conf)):
                progress.note(f"--conf {key}: its value stands in the list of processes; {IN_ENVIRONMENT}")
            spark = start_spark(parameters.run_id, master, conf)
            try:
                return kind.run(spark, parameters, progress).model_copy(update={"run_id": parameters.run_id})
            except spark_faults() as error:
                raise QuireError(f"Spark: {spark_reason(str(error))}") from error
            finally:
                spark.stop()

    began = datetime.now(UTC)
    summary = _hidden(lambda: _asked(work), secrets_of(conf))
    seconds = (datetime.now(UTC) - began).total_seconds()
    row = {"outcome": summary.outcome.value, "seconds": round(seconds, 3)} | summary.model_dump(mode="json")
    _show(summary, seconds, row if as_json else None)
    return exit_code(summary), row


def _hidden(ask: Callable[[], "Summary"], secrets: Sequence[str]) -> "Summary":
    """A summary, or an error, without these. Spark quotes a setting that it does not like."""
    from quire_jobs.main.secret_settings import without

    if not secrets:
        return ask()
    try:
        summary = ask()
    except QuireError as error:
        kind = next(each for each in (ConfigError, _FinalError, QuireError) if isinstance(error, each))
        raise kind(without(str(error), secrets)) from None  # the cause would be shown with it
    shown: dict[str, Any] = without(summary.model_dump(mode="json"), secrets)
    return type(summary).model_validate(shown | {"done": summary.done})


def exit_code(summary: "Summary") -> int:
    """Of a run that came to its end."""
    from quire_jobs.job import Outcome

    if summary.outcome is Outcome.SUCCEEDED:
        return 0
    return EXIT_FAILED if any(problem.retry_helps for problem in summary.problems) else EXIT_RETRY_USELESS


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM unwinds as an interrupt does: Spark stops, a bar ends. A container's first process would ignore it."""

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

    kinds = _asked(lambda: [load_kind(each) for each in ([name] if name else sorted(MODULES))])
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
