"""`quire ledger list|info|read|check|recover|delete`: commands on ledgers of any application.

Sends requests to a running process over HTTP: a bookie, an auto-recovery, a broker or a standalone.
"""

import base64
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.confirmation import Yes, confirm_name
from quire_bookie.cli.output import say, say_content
from quire_bookie.cli.refusals import RefusedError
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get, lines
from quire_bookie.cli.tables import Column, Output, OutputOption, print_data, print_item, print_one, print_rows
from quire_bookie.errors import ConfigError, PeerProtocolError

PAGE_LEDGERS = 1000
SHOWN_CHARACTERS = 80
Ledger = Annotated[int, typer.Argument(min=0, help="Id of the ledger.")]
DAMAGED = 1
_ROOT = "/admin/quire/ledgers"


def register(commands: Commands) -> None:
    """Add `quire ledger`."""
    app = new_app("List and read ledgers, check their replicas, recover and delete them.")
    commands.app.add_typer(app, name="ledger")
    _add_reading(app)
    _add_acting(app)


def _add_reading(app: typer.Typer) -> None:
    """Add the commands that change nothing and read little."""

    @app.command("list")
    def list_(
        limit: Annotated[int | None, typer.Option(min=1, help="Maximum number of ledgers.")] = None,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """List ledgers by id."""
        rows = list(_ledgers(http, limit))
        columns = [
            Column("ledger", lambda row: row["ledgerId"]),
            Column("state", lambda row: row["state"]),
            Column("E/Qw/Qa", _quorums),
            Column("entries", lambda row: row["entries"]),
            Column("bytes", lambda row: row["length"]),
            Column("belongs to", _owner),
        ]
        empty = "there are no ledgers yet; the first `quire produce` creates one"
        print_rows(rows, columns, output, name=lambda row: row["ledgerId"], empty=empty)

    @app.command()
    def info(ledger: Ledger, http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """Print the metadata of a ledger."""
        found = get(http, f"{_ROOT}/{ledger}")
        print_one(found, _facts(found), output, name=ledger)

    @app.command()
    def read(
        ledger: Ledger,
        entries: Annotated[str | None, typer.Argument(metavar="[FIRST-LAST]", help="E.g. 100-110, 100-, or 7.")] = None,
        first: Annotated[int, typer.Option(min=0, help="First entry.")] = 0,
        last: Annotated[int | None, typer.Option(min=0, help="Last entry. [the last confirmed]")] = None,
        as_hex: Annotated[bool, typer.Option("--hex", help="Print whole payloads in hexadecimal.")] = False,
        as_text: Annotated[bool, typer.Option("--text", help="Print only whole payloads, as text.")] = False,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Print the entries of a ledger. Does not fence it: its writer can continue."""
        if entries is not None:
            first, last = _range(entries)
        if last is not None and last < first:
            raise ConfigError(f"--last {last} comes before --first {first}")
        if as_hex and as_text:
            raise ConfigError("--hex and --text: give one of them")
        for entry in _entries(http, ledger, first, last):
            if not output.for_people:  # one object per line: a ledger may be long
                print_item(entry, output, name=entry["entryId"])
            elif as_hex:
                print(f"{entry['entryId']:>8}  {entry['length']:>9} B")
                print("\n".join(_hex_lines(base64.b64decode(entry["payload"]))))
            elif as_text:
                say_content(base64.b64decode(entry["payload"]).decode("utf-8", errors="replace"))
            else:
                say(_line(entry))


def _add_acting(app: typer.Typer) -> None:
    """Add the commands that take long or change something."""

    @app.command()
    def check(
        ledger: Ledger,
        rate: Annotated[int | None, typer.Option(min=1, help="Reads per second, of all bookies together.")] = None,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> int:
        """Read every replica of every entry and check its digest. Exit code 1 if a copy is missing or damaged."""
        path = f"{_ROOT}/{ledger}/check" + (f"?rate={rate}" if rate is not None else "")
        damages = unknown = missing = 0
        for_people = output.for_people
        for found in _served(http, lambda: lines(http, path)):
            if not for_people:
                print_item(found, output, name=ledger)
            if "error" in found:
                raise RefusedError(f"the check of ledger {ledger} ended early: {found['error']}")
            if "damages" in found:
                damages, unknown, missing = found["damages"], found["unknown"], found.get("missingCopies", 0)
            elif "bookie" in found and for_people:
                say(
                    f"{found['bookie']}  entries {found['first']} to {found['last']}  "
                    f"{found['kind']}: {found['reason']}"
                )
            elif "done" in found and for_people:
                say(f"{found['done']} of {found['of']} entries", err=True)
        if for_people:
            print(_verdict(ledger, damages, unknown, missing))
        return DAMAGED if damages or unknown or missing else 0

    @app.command()
    def recover(ledger: Ledger, http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """Fence a ledger, stopping its writer, and close it after its last confirmed entry."""
        found = _served(http, lambda: ask(http, "PUT", f"{_ROOT}/{ledger}/recover"))
        if output.for_people:
            print(f"ledger {ledger} is closed: {found['entries']} entries, {found['length']:,} bytes")
        elif output is Output.NAME:
            print(ledger)
        else:
            print_data(found, output)

    @app.command()
    def delete(
        ledger: Ledger,
        yes: Yes = False,
        http: Http = DEFAULT_HTTP,
    ) -> None:
        """Delete a ledger permanently. Its bookies free the space at their next garbage collection."""
        found = get(http, f"{_ROOT}/{ledger}")
        if not yes:
            for name, value in _facts(found).items():
                say(f"{name}: {'-' if value is None else value}", err=True)
            if found["state"] != "CLOSED":
                say("the ledger is not closed: a writer may still add entries, which would be lost", err=True)
            confirm_name(yes, str(ledger), f"ledger {ledger} and all its entries will be deleted")
        _served(http, lambda: ask(http, "DELETE", f"{_ROOT}/{ledger}"))
        say(f"ledger {ledger} is deleted")


def _served(http: str, call: Callable[[], Any]) -> Any:
    """Return the response; RefusedError with a remedy if the process does not serve the path, such as a broker."""
    try:
        return call()
    except RefusedError as refused:
        if str(refused) in ("Not Found", "Method Not Allowed"):
            raise RefusedError(
                f"{http} does not serve this request; give --http with the HTTP port of a bookie or "
                "of `quire autorecovery`"
            ) from refused
        raise


def _facts(found: dict[str, Any]) -> dict[str, object]:
    facts: dict[str, object] = {
        "ledger": found["ledgerId"],
        "state": found["state"],
        "E/Qw/Qa": _quorums(found),
        "digest": found["digestType"],
        "last entry": found["lastEntry"],
        "bytes": found["length"],
    }
    if _lacks_copies(found):
        facts["copies"] = f"{found['writeQuorum']} of {found['wantedCopies']}: it counts as under-replicated"
    facts |= {f"bookies from entry {part['firstEntry']}": ", ".join(part["ensemble"]) for part in found["segments"]}
    facts |= found["custom"]
    return facts


def _verdict(ledger: int, damages: int, unknown: int, missing: int) -> str:
    if damages:
        return (
            f"ledger {ledger}: {damages} ranges are missing or damaged; auto-recovery repairs them; "
            "`quire cluster unrecoverable` lists those that it could not repair"
        )
    if unknown:
        return f"ledger {ledger}: no damage on the bookies that answered; {unknown} ranges are unknown, try again"
    if missing:
        return (
            f"ledger {ledger}: every replica is intact, but {missing} more are configured: it was created while too "
            "few bookies were writable, and auto-recovery adds them when enough are"
        )
    return f"ledger {ledger}: every replica is intact"


def _range(text: str) -> tuple[int, int | None]:
    """Parse `7`, `7-` or `7-9`. ConfigError."""
    first, dash, last = text.partition("-")
    if not first.isdigit() or not (last.isdigit() or not last):
        raise ConfigError(f"entries {text}: expected FIRST-LAST, e.g. 100-110")
    if not dash:
        return int(first), int(first)
    return int(first), int(last) if last else None


def _hex_lines(payload: bytes) -> Iterator[str]:
    for at in range(0, len(payload), 16):
        part = payload[at : at + 16]
        text = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        yield f"{at:>8x}  {part.hex(' '):<47}  {text}"


def _quorums(row: dict[str, Any]) -> str:
    wanted = f" of {row['wantedCopies']} copies" if _lacks_copies(row) else ""
    return f"{row['ensembleSize']}/{row['writeQuorum']}/{row['ackQuorum']}{wanted}"


def _lacks_copies(row: dict[str, Any]) -> bool:
    """Return whether the ledger was created with too few bookies and not raised yet. Old versions omit the field."""
    return (row.get("wantedCopies") or 0) > (row["writeQuorum"] or 0)


def _owner(row: dict[str, Any]) -> str:
    custom = row["custom"]
    owner = custom.get("pulsar/managed-ledger") or custom.get("application") or "-"
    if "pulsar/schemaId" in custom:
        return f"{custom['pulsar/schemaId']} schema"
    return f"{owner} cursor {custom['pulsar/cursor']}" if "pulsar/cursor" in custom else owner


def _ledgers(http: str, limit: int | None) -> Iterator[dict[str, Any]]:
    after, left = -1, limit
    while left is None or left > 0:
        size = PAGE_LEDGERS if left is None else min(left, PAGE_LEDGERS)
        page = get(http, f"{_ROOT}?after={after}&limit={size}")
        yield from page["ledgers"]
        if page["next"] is None:
            return
        after = page["next"]
        left = None if left is None else left - len(page["ledgers"])


def _entries(http: str, ledger: int, first: int, last: int | None) -> Iterator[dict[str, Any]]:
    while last is None or first <= last:
        bound = "" if last is None else f"&last={last}"
        page = get(http, f"{_ROOT}/{ledger}/entries?first={first}{bound}")
        yield from page["entries"]
        if not page["entries"]:
            raise PeerProtocolError(f"ledger {ledger}: entry {first} is missing from the response")
        first = page["entries"][-1]["entryId"] + 1
        if first > page["lastAddConfirmed"]:
            return


def _line(entry: dict[str, Any]) -> str:
    payload = base64.b64decode(entry["payload"])
    message = entry.get("message")
    if message is None:
        return f"{entry['entryId']:>8}  {entry['length']:>9} B  {_text(payload)}"
    source = f"{message['producer']}:{message['sequenceId']}"
    count = f" x{message['messages']}" if message["messages"] > 1 else ""
    return (
        f"{entry['entryId']:>8}  {entry['length']:>9} B  {source}{count}  {_text(payload[message['payloadOffset'] :])}"
    )


def _text(payload: bytes) -> str:
    text = payload[: 4 * SHOWN_CHARACTERS].decode("utf-8", errors="replace")
    shown = "".join(character if character.isprintable() else "." for character in text[:SHOWN_CHARACTERS])
    return shown + ("..." if len(text) > SHOWN_CHARACTERS else "")
