"""`quire cluster drain|undrain|drains|decommission`: starts drains and follows their progress over HTTP."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import typer

from quire_bookie.cli.output import say
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, RefusedError, ask, get

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Bookie = Annotated[str, typer.Argument(help="Id of the bookie, as in `quire cluster status` and its log.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Only request it; the auditor does the work.")]
AcceptLoss = Annotated[
    list[int] | None,
    typer.Option("--accept-loss", min=0, help="Accept the loss of this ledger's unreadable entries. May be repeated."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
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
    def drains(http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
        """List the bookies that are drained, with the remaining ledgers and the obstacles."""
        found = get(http, _DRAINS)
        if as_json:
            say(json.dumps(found, indent=2))
            return
        for one in found:
            say(f"{one['bookie']}  {one['wish']}: {line(one)}")
            for reason in one["blocked_by"]:
                say(f"    {reason}")
        if not found:
            say("no bookie is drained", err=True)


def _drain_command(wish: str) -> Callable[..., None]:
    """Build the command that requests a drain or decommission and follows it."""

    def command(
        bookie: Bookie,
        accept_loss: AcceptLoss = None,
        yes: Yes = False,
        no_wait: NoWait = False,
        http: Http = DEFAULT_HTTP,
        as_json: AsJson = False,
    ) -> None:
        _accept(http, accept_loss or [], yes)
        _begin(http, bookie, wish, no_wait, as_json)

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
    if not yes:
        typer.confirm("Accept the loss of these entries?", abort=True, err=True)
    for ledger in ledgers:
        ask(http, "PUT", "/api/v1/quire/unrecoverable/accept", {"ledger": ledger})


def _begin(http: str, bookie: str, wish: str, no_wait: bool, as_json: bool) -> None:
    """Request the drain or decommission and follow it, unless it is already complete."""
    found = get(http, _path(bookie))
    if not (wish == "decommission" and found["state"] == "forgotten"):
        found = ask(http, "PUT", _path(bookie), {"wish": wish})
    if not no_wait:
        import asyncio  # not needed for --help

        try:
            found = asyncio.run(_follow(http, bookie, quiet=as_json))
        except KeyboardInterrupt:
            say("the drain continues without this command; `quire cluster drains` shows it, undrain ends it", err=True)
            raise
    if as_json:
        say(json.dumps(found, indent=2))
    else:
        say(_end(bookie, wish, found))


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
        return (
            f"bookie {bookie} is decommissioned, or never belonged to this cluster: no ledger names it, and it "
            "has no cookie"
        )
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
