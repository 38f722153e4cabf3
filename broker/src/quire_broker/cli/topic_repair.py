"""`quire topic attach` and `quire topic lost`: repair topics after a restore of the metadata."""

import os
from typing import Annotated, Any

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.metadata_cluster import Cluster, Metadata, StandaloneData, on_cluster, tell
from quire_bookie.cli.metadata_restore import Without, reviewing
from quire_bookie.cli.output import say
from quire_bookie.cli.settings import ConfigFile, Settings
from quire_bookie.cli.tables import print_table


def register(commands: Commands, app: typer.Typer) -> None:
    """Add both commands to `quire topic`."""

    @app.command()
    def attach(
        topic: Annotated[str, typer.Argument(help="persistent://tenant/namespace/topic, or that of a partition.")],
        ledgers: Annotated[list[int], typer.Argument(metavar="LEDGER...", min=0, help="Ids of adopted ledgers.")],
        create: Annotated[bool, typer.Option("--create", help="Create the topic if the metadata lost it.")] = False,
        metadata: Metadata = None,
        config: ConfigFile = None,
        set_: Settings = None,
        data: StandaloneData = None,
    ) -> None:
        """Put adopted ledgers back into a topic, while a restore of the metadata is under review."""
        import asyncio  # not needed for --help

        from quire_bookie.cli.metadata_cluster import opened_store, settings_of
        from quire_bookie.env.clock import SystemClock
        from quire_bookie.model import LedgerId
        from quire_broker.managed_ledger.attaching import attach as attach_
        from quire_broker.names import parse_topic

        cluster = Cluster(
            settings_of(commands, metadata, config, set_), False, None if data is None else os.path.abspath(data)
        )

        async def work() -> None:
            name = parse_topic(topic)
            async with opened_store(cluster) as store:
                now_ms = SystemClock().now_ms()
                ids = [LedgerId(one) for one in ledgers]
                node = await attach_(store, name.ledger_name, ids, now_ms, create=create)
            listed = ", ".join(str(record.ledger_id) for record in node.ledgers)
            say(f"{name} has ledgers {listed}: {sum(record.entries for record in node.ledgers)} entries")

        asyncio.run(work())

    _add_lost(commands, app)


def _add_lost(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app)
    async def lost(
        cluster: Cluster,
        without: Without = None,
        forget: Annotated[
            bool, typer.Option("--forget", help="Remove lost ledgers and schemas from topics and metadata.")
        ] = False,
    ) -> None:
        """List ledgers of topics, cursors and schemas that no bookie holds, while a restore is under review."""
        from quire_bookie.backup.format import BackupError
        from quire_bookie.backup.settling import unanswered
        from quire_bookie.model import BookieId
        from quire_broker.managed_ledger.lost_ledgers import absent_ledgers
        from quire_broker.managed_ledger.lost_ledgers import forget as forget_ledgers
        from quire_broker.names import topic_of_ledger
        from quire_broker.schemas.lost_schemas import absent_schemas, forget_schemas

        async with reviewing(cluster) as now:
            store = now.access.metadata
            holdings = await now.questions.holdings()
            silent = unanswered(holdings, [BookieId(one) for one in without or []])
            if silent:
                raise BackupError("it is not certain which ledgers are lost: " + "; ".join(silent))
            held = holdings.holders()
            ledgers, schemas = await absent_ledgers(store, held), await absent_schemas(store, held)
            if forget:
                await forget_ledgers(store, ledgers)
                await forget_schemas(store, schemas)
        rows: list[dict[str, Any]] = [
            {"topic": str(topic_of_ledger(one.topic)), "ledger": one.ledger, "state": one.fate.value}
            | {"entries": one.entries, "cursor": one.cursor or None}
            for one in ledgers
        ]
        rows += [
            {"topic": identity, "ledger": one.ledger_id, "state": f"schema version {one.version} lost"}
            | {"entries": None, "cursor": None}
            for identity, versions in schemas.items()
            for one in versions
        ]
        if cluster.as_json:
            tell(True, {"ledgers": rows, "forgotten": forget}, "")
            return
        names = ("topic", "cursor", "ledger", "entries", "state")
        if rows:
            print_table(names, [tuple(row[name] for name in names) for row in rows])
        done = "they are forgotten" if forget else "nothing was changed; give --forget to remove the lost ones"
        say(f"{len(rows)} ledgers are on no bookie: {done}" if rows else "no ledger of a topic is lost", err=True)
