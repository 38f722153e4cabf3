"""`quire broker balance`: explains or makes the moves of bundles away from overloaded brokers."""

from typing import Annotated, Any

import typer

from quire_bookie.cli.output import say
from quire_bookie.cli.rest import DEFAULT_HTTP, Http, ask, get
from quire_bookie.cli.tables import Form, FormOption, print_json, print_table
from quire_bookie.errors import ConfigError

PATH = "/admin/quire/balancing"


def register(app: typer.Typer) -> None:
    """Add the command to `quire broker`."""

    @app.command()
    def balance(
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves, and make none.")] = False,
        http: Http = DEFAULT_HTTP,
        format_: FormOption = Form.TABLE,
    ) -> None:
        """Move bundles away from overloaded brokers now, with the reason of each move.

        The leader does this by itself, once a broker has been overloaded for some time. The limit of moves holds.
        """
        state = get(http, PATH)
        plan = state
        if not dry_run:
            plan = ask(leader_of(http, state), "POST", PATH)
        if format_ is Form.JSON:
            print_json(state | plan)
        else:
            _show(state, plan, "would move" if dry_run else "moves")


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
    leader = (state["leader"] or {}).get("brokerId")
    print_table(
        ("broker", "usage", "of", "bundles", "topics", "messages/s", ""),
        [
            (
                row["broker"],
                f"{row['usage']:.0%}",
                row["resource"],
                row["bundles"],
                row["topics"],
                row["messagesPerSecond"],
                ", ".join(
                    word
                    for word, holds in (("leader", row["broker"] == leader), ("draining", row["draining"]))
                    if holds
                )
                or "-",
            )
            for row in state["brokers"]
        ],
    )
    for move in plan["moves"]:
        say(f"{verb} {move['explanation']}")
    for move in plan["queued"]:
        say(f"later {move['explanation']}")
    for note in plan["notes"]:
        say(note)
    if not plan["moves"] and not plan["queued"]:
        say(f"no bundle moves: the average usage is {plan['average']:.0%}")
