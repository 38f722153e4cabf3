"""`quire bookie quarantine list` and `quire bookie undelete`: send requests to a running bookie over HTTP."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from quire_bookie.cli.commands import new_app
from quire_bookie.cli.output import say
from quire_bookie.cli.rest import DEFAULT_HTTP, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_rows
from quire_bookie.cli.times import duration_s, moment_ms
from quire_bookie.errors import ConfigError
from quire_bookie.limits import UNDELETE_LEDGERS_MAX

RunningAt = Annotated[
    str, typer.Option("--http", help="HTTP address of the running bookie.", envvar="QUIRE_BOOKIE_HTTP")
]
Ledgers = Annotated[list[int] | None, typer.Argument(metavar="[LEDGER]...", min=0, help="Ids of ledgers to restore.")]
All = Annotated[bool, typer.Option("--all", help="Restore every ledger in quarantine.")]
Since = Annotated[
    str | None,
    typer.Option(help="Restore ledgers quarantined since then: 2h, 30m, 1d, or a time like 2026-01-31T12:00Z."),
]
For = Annotated[
    str | None,
    typer.Option("--for", help="Keep them for this time (2h, 7d). [until the metadata names them again]"),
]
_ROOT: Final = "/api/v1/bookie/gc"


def register(app: typer.Typer) -> None:
    """Add the commands to `quire bookie`."""
    quarantine = new_app("Show ledgers that are missing from the metadata and that the bookie still keeps for a time.")
    app.add_typer(quarantine, name="quarantine")
    quarantine.callback()(lambda: None)

    @quarantine.command("list")
    def list_(http: RunningAt = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """List the ledgers in quarantine, and those that were undeleted, with the time until they are deleted."""
        paused_by: list[str] = []
        found = list(_quarantined(http, paused_by))
        columns = [
            Column("ledger", lambda row: row["ledger"]),
            Column("state", lambda row: row["state"]),
            Column("since", lambda row: _shown(row["since"])),
            Column("until", lambda row: "the metadata names it" if row["until"] is None else _shown(row["until"])),
            Column("entries", lambda row: row["entries"]),
            Column("bytes", lambda row: row["bytes"]),
            Column("reason", lambda row: row["reason"]),
        ]
        print_rows(found, columns, output, name=lambda row: row["ledger"], empty="no ledger is in quarantine")
        if paused_by:
            say(f"the time in quarantine is paused: {paused_by[0]}", err=True)

    @app.command()
    def undelete(
        ledgers: Ledgers = None,
        all_: All = False,
        since: Since = None,
        for_: For = None,
        http: RunningAt = DEFAULT_HTTP,
    ) -> None:
        """Restore ledgers from quarantine: the bookie keeps its copies until the metadata names them again."""
        if (bool(ledgers) + all_ + (since is not None)) != 1:
            raise ConfigError("undelete: give ids of ledgers, or --all, or --since")
        if len(ledgers or ()) > UNDELETE_LEDGERS_MAX:
            raise ConfigError(f"undelete: give at most {UNDELETE_LEDGERS_MAX} ids at once, or use --since")
        body: dict[str, Any] = {}
        if ledgers:
            body["ledgers"] = ledgers
        elif all_:
            body["all"] = True
        else:
            body["since"] = moment_ms("--since", since or "", datetime.now(UTC))
        if for_ is not None:
            body["forSeconds"] = duration_s("--for", for_)
        done = ask(http, "PUT", f"{_ROOT}/undelete", body)["undeleted"]
        until = "until the metadata names them again" if for_ is None else f"for {for_}"
        say(f"undeleted ledgers: {done}; this bookie keeps its copies {until}")


def _quarantined(http: str, paused_by: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows, one page at a time; append the reason to `paused_by` if quarantine does not expire."""
    after: int | None = -1
    while after is not None:
        page = get(http, f"{_ROOT}/quarantine?after={after}")
        yield from page["ledgers"]
        after = page["next"]
        if after is None and page["doubt"] is not None:
            paused_by.append(page["doubt"])


def _shown(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
