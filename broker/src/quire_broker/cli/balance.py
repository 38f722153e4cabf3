"""`quire broker list`, and `quire broker balance`, which moves bundles away from overloaded brokers, or explains."""

from typing import Annotated, Any

import typer

from quire_bookie.cli.output import say
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Column, Output, OutputOption, print_data, print_rows
from quire_bookie.errors import ConfigError

PATH = "/admin/quire/balancing"
_COLUMNS = (
    Column("broker", lambda row: row["broker"]),
    Column("usage", lambda row: f"{row['usage']:.0%}"),
    Column("of", lambda row: row["resource"]),
    Column("bundles", lambda row: row["bundles"]),
    Column("topics", lambda row: row["topics"]),
    Column("messages/s", lambda row: round(row["messagesPerSecond"])),
    Column("bytes/s", lambda row: round(row["bytesPerSecond"]), wide=True),
    Column("", lambda row: row["marks"] or None),
)


def register(app: typer.Typer) -> None:
    """Add the command to `quire broker`."""

    @app.command("list")
    def list_(http: Http = DEFAULT_HTTP, output: OutputOption = Output.TABLE) -> None:
        """List the brokers of the cluster, with their usage as they last reported it."""
        state = get(http, PATH)
        print_rows(_rows(state), _COLUMNS, output, name=lambda row: row["broker"], empty="no broker is registered")

    @app.command()
    def balance(
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves, and make none.")] = False,
        http: Http = DEFAULT_HTTP,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Move bundles away from overloaded brokers now, with the reason of each move.

        The leader does this by itself, once a broker has been overloaded for some time. The limit of moves holds.
        """
        state = get(http, PATH)
        plan = state
        if not dry_run:
            plan = ask(leader_of(http, state), "POST", PATH)
        if output.for_people:
            _show(state, plan, "would move" if dry_run else "moves")
        elif output is Output.NAME:
            for move in plan["moves"]:
                print(move["bundle"])
        else:
            print_data(state | plan, output)


def leader_of(http: str, state: dict[str, Any]) -> str:
    """Return the address of the leader. ConfigError if there is none, or none that is as safe as `http`."""
    leader = state["leader"]
    if leader is None:
        raise ConfigError("no broker leads at the moment; repeat the command in some seconds")
    if leader["brokerId"] == state["broker"]:
        return http
    url = str(leader["serviceUrl"])
    if http.startswith("https:") and not url.startswith("https:"):
        raise ConfigError(
            f"the leader is at {url}, in plaintext, which would expose the token; give its https address with --http"
        )
    return url


def _show(state: dict[str, Any], plan: dict[str, Any], verb: str) -> None:
    print_rows(_rows(state), _COLUMNS, Output.TABLE, name=lambda row: row["broker"], empty="no broker is registered")
    for move in plan["moves"]:
        say(f"{verb} {move['explanation']}")
    for move in plan["queued"]:
        say(f"later {move['explanation']}")
    for note in plan["notes"]:
        say(note)
    if not plan["moves"] and not plan["queued"]:
        say(f"no bundle moves: the average usage is {plan['average']:.0%}")


def _rows(state: dict[str, Any]) -> list[dict[str, Any]]:
    leader = (state["leader"] or {}).get("brokerId")
    rows = []
    for row in state["brokers"]:
        marks = [word for word, holds in (("leader", row["broker"] == leader), ("draining", row["draining"])) if holds]
        rows.append(row | {"marks": ", ".join(marks)})
    return rows
