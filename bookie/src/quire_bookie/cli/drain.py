"""`quire cluster drain|undrain|drains|decommission`: empty bookies, and see how far that is. Asks over HTTP."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import typer

from quire_bookie.cli.output import say
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, RefusedError, ask, get

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Bookie = Annotated[str, typer.Argument(help="Id of the bookie, as `quire cluster status` and the log name it.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Only say it; the auditor goes on by itself.")]
AcceptLoss = Annotated[
    list[int] | None,
    typer.Option("--accept-loss", min=0, help="Give up what no replica can serve of this ledger. May be repeated."),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
POLL_S = 2.0
_DRAINS = "/api/v1/quire/drains"
_DRAIN = "Make a bookie read-only and have everything copied away from it. It stays a member; undrain ends it."
_DECOMMISSION = (
    "Empty a bookie, running or dead, and forget it: its cookie goes once it is stopped. Run it again to go on."
)


def register(app: typer.Typer) -> None:
    """Add the commands to `quire cluster`."""
    app.command("drain", help=_DRAIN)(_wishing("drain"))
    app.command("decommission", help=_DECOMMISSION)(_wishing("decommission"))

    @app.command()
    def undrain(bookie: Bookie, http: Http = DEFAULT_HTTP) -> None:
        """Take a drain or decommission back: the bookie becomes writable again. What was copied away stays there."""
        found = ask(http, "DELETE", _path(bookie))
        say(
            f"bookie {bookie} is not drained any more"
            if found["wish"] is None
            else f"bookie {bookie} becomes as it was; `quire cluster drains` shows it until then"
        )

    @app.command()
    def drains(http: Http = DEFAULT_HTTP, as_json: AsJson = False) -> None:
        """List bookies that are emptied, with what is left and what stands in the way."""
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


def _wishing(wish: str) -> Callable[..., None]:
    """The command that says a wish and follows it."""

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
    """Put a person's word beside each of these ledgers, after having shown what is lost."""
    if not ledgers:
        return
    noted = {note["ledger"]: note["reason"] for note in get(http, "/api/v1/quire/unrecoverable")}
    for ledger in ledgers:
        if ledger not in noted:
            raise RefusedError(
                f"--accept-loss {ledger}: it is not on the list of `quire cluster unrecoverable`, so nothing of it is "
                "known to be lost; start the drain without it first"
            )
        say(f"ledger {ledger}: {noted[ledger]}", err=True)
    if not yes:
        typer.confirm("Give these entries up?", abort=True, err=True)
    for ledger in ledgers:
        ask(http, "PUT", "/api/v1/quire/unrecoverable/accept", {"ledger": ledger})


def _begin(http: str, bookie: str, wish: str, no_wait: bool, as_json: bool) -> None:
    """Say the wish and follow it, unless it was carried out before."""
    found = get(http, _path(bookie))
    if not (wish == "decommission" and found["state"] == "forgotten"):
        found = ask(http, "PUT", _path(bookie), {"wish": wish})
    if not no_wait:
        import asyncio  # help does without

        try:
            found = asyncio.run(_follow(http, bookie, quiet=as_json))
        except KeyboardInterrupt:
            say("it goes on without this command; `quire cluster drains` shows it, undrain ends it", err=True)
            raise
    if as_json:
        say(json.dumps(found, indent=2))
    else:
        say(_end(bookie, wish, found))


async def _follow(http: str, bookie: str, *, quiet: bool) -> dict[str, Any]:
    """Print what changes until the bookie is empty or forgotten."""
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
    """State, what is left, and when it should end."""
    if "ledgers_left" not in found:
        return f"{found['state']}: the auditor has not looked yet"
    text = f"{found['state']}: {found['ledgers_left']} of {found['ledgers_first']} ledgers left"
    if found["bytes_first"]:
        text += f", {found['bytes_left']:,} of {found['bytes_first']:,} bytes"
    if found["eta_s"]:
        text += f", about {timedelta(seconds=found['eta_s'])} more"
    return text


def _end(bookie: str, wish: str, found: dict[str, Any]) -> str:
    if found["state"] == "forgotten":
        return (
            f"bookie {bookie} is decommissioned, or never was a bookie of this cluster: no ledger names it, and it has "
            "no cookie"
        )
    if found["state"] == "emptied" and wish == "decommission":
        return (
            f"everything was copied away from bookie {bookie} and read back: stop its process; its cookie is removed "
            "then by itself"
        )
    if found["state"] == "emptied":
        return (
            f"everything was copied away from bookie {bookie} and read back; it stays read-only until `quire cluster "
            f"undrain {bookie}`"
        )
    if found["wish"] in (None, "cancel"):
        return f"the drain of bookie {bookie} was taken back"
    return f"bookie {bookie}: {line(found)}; `quire cluster drains` shows how far it is"
