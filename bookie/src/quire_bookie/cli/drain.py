"""`quire cluster drain|undrain|drains|decommission`: starts drains and follows their progress over HTTP."""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import typer

from quire_bookie.cli.confirmation import Yes, confirm_name
from quire_bookie.cli.output import say
from quire_bookie.cli.refusals import MissingError, RefusedError
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_item, print_rows

Bookie = Annotated[str, typer.Argument(help="Id of the bookie, as in `quire bookie list`.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Only request it; the auditor does the work.")]
AcceptLoss = Annotated[
    list[int] | None,
    typer.Option("--accept-loss", min=0, help="Accept the loss of this ledger's unreadable entries. May be repeated."),
]
POLL_S = 2.0
_DRAINS = "/api/v1/quire/drains"
_DRAIN = "Make a bookie read-only and move all its copies to others. It stays a member; undrain ends the drain."
_DECOMMISSION = "Drain a bookie, running or dead, and remove its cookie once it is stopped. Run it again to resume."


def register(app: typer.Typer) -> None:
    """Add the commands to `quire cluster`."""
    app.command("drain", help=_DRAIN)(_drain_command("drain"))
    app.command("decommission", help=_DECOMMISSION)(_drain_command("decommission"))

    @app.command()
    def undrain(bookie: Bookie, http: Http = DEFAULT_HTTP) -> None:
        """Withdraw a drain or decommission: the bookie becomes writable again. Entries that were moved stay there."""
        found = ask(http, "DELETE", _path(bookie))
        say(
            f"bookie {bookie} is no longer drained"
            if found["wish"] is None
            else f"bookie {bookie} returns to its previous state; `quire cluster drains` shows it until then"
        )

    @app.command()
    def drains(http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """List the bookies that are drained, with the remaining ledgers and the obstacles."""
        found = get(http, _DRAINS)
        columns = [
            Column("bookie", lambda row: row["bookie"]),
            Column("request", lambda row: row["wish"]),
            Column("progress", line),
            Column("blocked by", lambda row: "; ".join(row["blocked_by"]) or None),
        ]
        print_rows(found, columns, output, name=lambda row: row["bookie"], empty="no bookie is drained")


def _drain_command(wish: str) -> Callable[..., None]:
    """Build the command that requests a drain or decommission and follows it."""

    def command(
        bookie: Bookie,
        accept_loss: AcceptLoss = None,
        yes: Yes = False,
        no_wait: NoWait = False,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        _accept(http, accept_loss or [], yes)
        _begin(http, bookie, wish, no_wait, output)

    return command


def _path(bookie: str) -> str:
    from urllib.parse import quote

    return f"{_DRAINS}/{quote(bookie, safe='')}"


def _accept(http: str, ledgers: list[int], yes: bool) -> None:
    """Show the lost entries of each ledger, ask for confirmation, and record that the loss is accepted."""
    if not ledgers:
        return
    noted = {note["ledger"]: note["reason"] for note in get(http, "/api/v1/quire/unrecoverable")}
    for ledger in ledgers:
        if ledger not in noted:
            raise RefusedError(
                f"--accept-loss {ledger}: `quire cluster unrecoverable` does not list it, so no loss is known; "
                "start the drain without it first"
            )
        say(f"ledger {ledger}: {noted[ledger]}", err=True)
    confirm_name(yes, "loss", f"the loss of these entries of {len(ledgers)} ledgers will be accepted")
    for ledger in ledgers:
        ask(http, "PUT", "/api/v1/quire/unrecoverable/accept", {"ledger": ledger})


def _begin(http: str, bookie: str, wish: str, no_wait: bool, output: Output) -> None:
    """Request the drain or decommission and follow it, unless it is already complete."""
    found = get(http, _path(bookie))
    if wish == "decommission" and found["state"] == "forgotten":
        raise MissingError(
            f"no bookie {bookie} belongs to this cluster: it has no cookie and no ledger names it, because it is "
            "decommissioned already or the id is wrong; `quire bookie list` shows the ids"
        )
    found = ask(http, "PUT", _path(bookie), {"wish": wish})
    if not no_wait:
        import asyncio  # not needed for --help

        try:
            found = asyncio.run(_follow(http, bookie, quiet=not output.for_people))
        except KeyboardInterrupt:
            say("the drain continues without this command; `quire cluster drains` shows it, undrain ends it", err=True)
            raise
    if output.for_people:
        say(_end(bookie, wish, found))
    else:
        print_item(found, output, name=bookie)


async def _follow(http: str, bookie: str, *, quiet: bool) -> dict[str, Any]:
    """Print changes until the bookie is empty or decommissioned, or the drain is withdrawn."""
    import asyncio

    shown = ""
    blocked: list[str] = []
    while True:
        found: dict[str, Any] = get(http, _path(bookie))
        if found["wish"] in (None, "cancel") or found["state"] == "emptied":
            return found
        if not quiet and line(found) != shown:
            shown = line(found)
            say(shown, err=True)
        if not quiet and found["blocked_by"] != blocked:
            blocked = found["blocked_by"]
            for reason in blocked:
                say(f"    {reason}", err=True)
        await asyncio.sleep(POLL_S)


def line(found: dict[str, Any]) -> str:
    """Return one line: state, remaining ledgers and bytes, and the expected time."""
    if "ledgers_left" not in found:
        return f"{found['state']}: the auditor has not examined it yet"
    text = f"{found['state']}: {found['ledgers_left']} of {found['ledgers_first']} ledgers left"
    if found["bytes_first"]:
        text += f", {found['bytes_left']:,} of {found['bytes_first']:,} bytes"
    if found["eta_s"]:
        text += f", about {timedelta(seconds=found['eta_s'])} more"
    return text


def _end(bookie: str, wish: str, found: dict[str, Any]) -> str:
    if found["state"] == "forgotten":
        return f"bookie {bookie} is decommissioned: no ledger names it, and it has no cookie"
    if found["state"] == "emptied" and wish == "decommission":
        return (
            f"all entries of bookie {bookie} were copied to others and read back: stop its process; its cookie is then "
            "removed automatically"
        )
    if found["state"] == "emptied":
        return (
            f"all entries of bookie {bookie} were copied to others and read back; it stays read-only until "
            f"`quire cluster undrain {bookie}`"
        )
    if found["wish"] in (None, "cancel"):
        return f"the drain of bookie {bookie} was withdrawn"
    return f"bookie {bookie}: {line(found)}; `quire cluster drains` shows its progress"
