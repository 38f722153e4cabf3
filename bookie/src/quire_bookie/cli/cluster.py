"""`quire cluster ...`: queries any running process over HTTP about the cluster's bookies and under-replication."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from quire_bookie.cli import drain
from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.output import say
from quire_bookie.cli.refusals import RefusedError
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_one, print_rows

_RECOVERY = "/api/v1/autorecovery"
_LABELS = {
    "auditorId": "auditor",
    "ledgerReplicationEnabled": "auto-recovery is on",
    "totalBookiesCount": "bookies",
    "writableBookiesCount": "writable bookies",
    "readonlyBookiesCount": "read-only bookies",
    "unavailableBookiesCount": "missing bookies",
    "underReplicatedLedgers": "under-replicated ledgers",
    "ledgersBelowConfiguredCopies": "ledgers with too few copies",
    "unrecoverableLedgers": "unrecoverable ledgers",
}
"""How `cluster status` names the fields of its answer to people."""


def register(commands: Commands) -> None:
    """Add `quire cluster`."""
    app = new_app("Show bookies and lost replicas, and control auto-recovery, through a running process.")
    commands.app.add_typer(app, name="cluster")
    drain.register(app)

    @app.command()
    def status(http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """Show the bookies, the auditor, and the number of under-replicated ledgers."""
        found: dict[str, Any] = get(http, "/api/v1/bookie/cluster_info")
        found["underReplicatedLedgers"] = len(_marked(http))
        narrow = get(http, "/api/v1/quire/narrow-ledgers")
        count = len(narrow["ledgers"])
        found["ledgersBelowConfiguredCopies"] = count if narrow["complete"] else f"at least {count}"
        found["unrecoverableLedgers"] = len(get(http, "/api/v1/quire/unrecoverable"))
        print_one(found, {label: found[key] for key, label in _LABELS.items()}, output, name="cluster")

    @app.command("under-replicated")
    def under_replicated(
        bookie: Annotated[str | None, typer.Option(help="Only ledgers with a missing replica on this bookie.")] = None,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """List ledgers marked as under-replicated, with the bookies whose replicas are missing or incomplete."""
        marked = {ledger: bookies for ledger, bookies in _marked(http).items() if bookie is None or bookie in bookies}
        columns = [
            Column("ledger", lambda row: row["ledger"]),
            Column(
                "missing on",
                lambda row: ", ".join(row["bookies"]) or "no bookie: it was created with too few copies",
            ),
        ]
        rows = [{"ledger": int(ledger), "bookies": bookies} for ledger, bookies in marked.items()]
        print_rows(rows, columns, output, name=lambda row: row["ledger"], empty="nothing is under-replicated")

    @app.command()
    def unrecoverable(http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """List ledgers with entries that no replica could serve, with the reason."""
        found = get(http, "/api/v1/quire/unrecoverable")
        columns = [
            Column("ledger", lambda row: row["ledger"]),
            Column(
                "since",
                lambda row: datetime.fromtimestamp(row["since_ms"] / 1000, UTC).isoformat(timespec="seconds"),
            ),
            Column("attempts", lambda row: row["attempts"]),
            Column("loss", lambda row: None if row["accepted_ms"] is None else "accepted"),
            Column("reason", lambda row: row["reason"]),
        ]
        empty = "no ledger is unrecoverable: every attempted repair succeeded"
        print_rows(found, columns, output, name=lambda row: row["ledger"], empty=empty)

    _add_recovery(app)


def _add_recovery(app: typer.Typer) -> None:
    """Add the commands that show and control auto-recovery."""

    @app.command("lost-bookie")
    def lost_bookie(
        now: Annotated[bool, typer.Option("--now", help="Do not wait: mark ledgers of missing bookies now.")] = False,
        delay_s: Annotated[int | None, typer.Option("--delay", min=0, help="Set the delay, in seconds.")] = None,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Show or set how long a bookie may be missing, or declare the missing bookies lost now."""
        if delay_s is not None:
            ask(http, "PUT", f"{_RECOVERY}/lost_bookie_recovery_delay", {"delay_seconds": delay_s})
        if now:
            ask(http, "PUT", f"{_RECOVERY}/trigger_audit")
            say("the auditor marks the ledgers of every bookie that is missing now")
            return
        found = get(http, f"{_RECOVERY}/lost_bookie_recovery_delay")
        say(f"a bookie counts as lost after {found['delay_seconds']} s")

    @app.command()
    def auditor(http: Http = DEFAULT_HTTP) -> None:
        """Print which process is the auditor."""
        say(get(http, f"{_RECOVERY}/who_is_auditor")["Auditor"])

    @app.command()
    def autorecovery(
        wish: Annotated[str | None, typer.Argument(metavar="[on|off]", help="Switch auto-recovery. [show it]")] = None,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Show auto-recovery of the whole cluster, or switch it on or off."""
        if wish not in (None, "on", "off"):
            raise typer.BadParameter(f"'{wish}' is not valid: give on or off")
        if wish is None:
            found = get(http, f"{_RECOVERY}/status")
        else:
            found = ask(http, "PUT", f"{_RECOVERY}/status?enabled={str(wish == 'on').lower()}")
        say("on" if found["enabled"] else "off")


def _marked(http: str) -> dict[str, list[str]]:
    """Return marked ledgers with their bookies; BookKeeper's API answers an empty list with an error."""
    try:
        found: dict[str, list[str]] = get(http, f"{_RECOVERY}/list_under_replicated_ledger?print_missing_replica=true")
    except RefusedError as refused:
        if "No under replicated ledgers" in str(refused):
            return {}
        raise
    return found
