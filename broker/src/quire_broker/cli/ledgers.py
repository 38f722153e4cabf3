"""`quire ledger list|info|read`: ledgers as the store has them, whoever wrote them."""

import base64
import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from quire_bookie.cli.main import Commands, new_app
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, get
from quire_bookie.errors import ConfigError, PeerProtocolError
from quire_broker.cli.tables import Form, FormOption, print_facts, print_json, print_table

PAGE_LEDGERS = 1000
SHOWN_CHARACTERS = 80
Ledger = Annotated[int, typer.Argument(min=0, help="Id of the ledger.")]


def register(commands: Commands) -> None:
    """Add `quire ledger`."""
    app = new_app("Look at ledgers of a running process.")
    commands.app.add_typer(app, name="ledger")

    @app.command("list")
    def list_(
        limit: Annotated[int | None, typer.Option(min=1, help="At most so many.")] = None,
        http: Http = DEFAULT_HTTP,
        format_: FormOption = Form.TABLE,
    ) -> None:
        """List ledgers by id."""
        rows = list(_ledgers(http, limit))
        if format_ is Form.JSON:
            print_json(rows)
        elif rows:
            print_table(
                ("ledger", "state", "E/Qw/Qa", "entries", "bytes", "belongs to"),
                [
                    (row["ledgerId"], row["state"], _quorums(row), row["entries"], row["length"], _owner(row))
                    for row in rows
                ],
            )
        else:
            typer.echo("there are no ledgers yet; the first `quire produce` makes one", err=True)

    @app.command()
    def info(ledger: Ledger, http: Http = DEFAULT_HTTP, format_: FormOption = Form.TABLE) -> None:
        """Print the metadata of a ledger."""
        found = get(http, f"/admin/quire/ledgers/{ledger}")
        if format_ is Form.JSON:
            print_json(found)
            return
        facts = {
            "ledger": found["ledgerId"],
            "state": found["state"],
            "E/Qw/Qa": _quorums(found),
            "digest": found["digestType"],
            "last entry": found["lastEntry"],
            "bytes": found["length"],
        }
        facts |= {f"bookies from entry {part['firstEntry']}": ", ".join(part["ensemble"]) for part in found["segments"]}
        print_facts(facts | found["custom"])

    @app.command()
    def read(
        ledger: Ledger,
        first: Annotated[int, typer.Option(min=0, help="First entry.")] = 0,
        last: Annotated[int | None, typer.Option(min=0, help="Last entry; default: all that is confirmed.")] = None,
        http: Http = DEFAULT_HTTP,
        format_: FormOption = Form.TABLE,
    ) -> None:
        """Print the entries of a ledger. Reading changes nothing: an open ledger stays its writer's."""
        if last is not None and last < first:
            raise ConfigError(f"--last {last} comes before --first {first}")
        for entry in _entries(http, ledger, first, last):
            if format_ is Form.JSON:
                print(json.dumps(entry))  # one a line: a ledger may be long
            else:
                print(_line(entry))


def _quorums(row: dict[str, Any]) -> str:
    return f"{row['ensembleSize']}/{row['writeQuorum']}/{row['ackQuorum']}"


def _owner(row: dict[str, Any]) -> str:
    custom = row["custom"]
    owner = custom.get("pulsar/managed-ledger") or custom.get("application") or "-"
    return f"{owner} cursor {custom['pulsar/cursor']}" if "pulsar/cursor" in custom else owner


def _ledgers(http: str, limit: int | None) -> Iterator[dict[str, Any]]:
    after, left = -1, limit
    while left is None or left > 0:
        size = PAGE_LEDGERS if left is None else min(left, PAGE_LEDGERS)
        page = get(http, f"/admin/quire/ledgers?after={after}&limit={size}")
        yield from page["ledgers"]
        if page["next"] is None:
            return
        after = page["next"]
        left = None if left is None else left - len(page["ledgers"])


def _entries(http: str, ledger: int, first: int, last: int | None) -> Iterator[dict[str, Any]]:
    while last is None or first <= last:
        bound = "" if last is None else f"&last={last}"
        page = get(http, f"/admin/quire/ledgers/{ledger}/entries?first={first}{bound}")
        yield from page["entries"]
        if not page["entries"]:
            raise PeerProtocolError(f"ledger {ledger}: entry {first} is missing from the answer")
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
