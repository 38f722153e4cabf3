"""`quire metadata ...`: backups of the cluster's metadata, and the steps after a restore.

Owns arguments, tables and exit codes. With `--json` each command, even if it fails, prints one JSON value on one line,
for a CronJob's log. Connects to etcd and the bookies directly: after a restore no other process may run yet.
"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from quire_bookie.cli import metadata_epoch, metadata_repair, metadata_restore
from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.metadata_cluster import (
    AsJson,
    Backup,
    Cluster,
    Endpoint,
    From,
    object_store_of,
    on_cluster,
    row_of,
    run,
    store_of,
    stored_bytes,
    tell,
)
from quire_bookie.cli.output import say
from quire_bookie.cli.tables import print_table

if TYPE_CHECKING:
    pass


def register(commands: Commands) -> None:
    """Add `quire metadata`."""
    app = new_app("Back up and restore the cluster's metadata.")
    commands.app.add_typer(app, name="metadata")
    _add_backup(commands, app)
    _add_zookeeper(app)
    _add_reading(app)
    metadata_restore.register(commands, app)
    metadata_epoch.register(commands, app)
    metadata_repair.register(app)


def _add_backup(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app)
    async def backup(
        cluster: Cluster,
        to: Annotated[str, typer.Option("--to", help="Target: s3://bucket/prefix or file:///folder.")],
        keep: Annotated[int | None, typer.Option(min=1, help="Backups of this cluster to keep.")] = None,
        endpoint: Endpoint = None,
    ) -> None:
        """Back up all metadata of the cluster in etcd, at one revision, except nodes that belong to sessions."""

        from quire_bookie.backup.taking import keep_newest, take_backup
        from quire_bookie.env.chance import SystemChance
        from quire_bookie.env.clock import SystemClock
        from quire_bookie.metadata.restoration import RESTORATION

        objects = object_store_of(to, endpoint)
        clock = SystemClock()
        store = await store_of(cluster)
        try:
            manifest = await take_backup(store, objects, clock=clock, chance=SystemChance())
            # During the review of a restore an older backup may be the better one: remove none.
            reviewing = await store.get(RESTORATION) is not None
        finally:
            await store.close()
        removed = [] if keep is None or reviewing else await keep_newest(objects, manifest, keep, clock)
        row = row_of(manifest) | {
            "to": to,
            "removed": removed,
            "milliseconds": clock.now_ms() - manifest.created_ms,
        }
        text = f"backup {manifest.name}: {manifest.nodes} nodes, {manifest.ledgers} ledgers"
        text += "" if manifest.revision is None else f", at revision {manifest.revision}"
        tell(cluster.as_json, row, text + (f"; removed {', '.join(removed)}" if removed else ""))


def _add_zookeeper(app: typer.Typer) -> None:
    @app.command("backup-zookeeper")
    def backup_zookeeper(
        zookeeper: Annotated[
            str, typer.Option("--zookeeper", help="Its servers, and the path of the cluster: host:2181,host:2181/path.")
        ],
        to: Annotated[str, typer.Option("--to", help="Target: s3://bucket/prefix or file:///folder.")],
        endpoint: Endpoint = None,
        as_json: AsJson = False,
    ) -> None:
        """Back up the metadata of a stopped BookKeeper or Pulsar cluster on ZooKeeper; `restore` writes it to etcd."""

        async def work() -> None:
            from quire_bookie.backup.taking import take_backup
            from quire_bookie.backup.zookeeper import ZookeeperMetadata
            from quire_bookie.env.chance import SystemChance
            from quire_bookie.env.clock import SystemClock

            objects = object_store_of(to, endpoint)
            found = await ZookeeperMetadata.read(zookeeper)
            manifest = await take_backup(found, objects, clock=SystemClock(), chance=SystemChance())
            text = f"backup {manifest.name}: {manifest.nodes} nodes, {manifest.ledgers} ledgers"
            tell(as_json, row_of(manifest) | {"to": to}, text)

        run(as_json, work)


def _add_reading(app: typer.Typer) -> None:
    @app.command("list")
    def list_(from_: From, endpoint: Endpoint = None, as_json: AsJson = False) -> None:
        """List backups, the oldest first."""

        async def work() -> None:
            from quire_bookie.backup.reading import list_backups

            found = await list_backups(object_store_of(from_, endpoint))
            if as_json:
                rows = [row_of(each.manifest) if each.manifest is not None else {"name": each.name} for each in found]
                print(json.dumps([row | {"problem": each.problem} for row, each in zip(rows, found, strict=True)]))
            elif found:
                print_table(
                    ("backup", "revision", "nodes", "ledgers", "bytes", "cluster", "state"),
                    [
                        (each.name, None, None, None, None, None, each.problem)
                        if (manifest := each.manifest) is None
                        else (
                            *(each.name, manifest.revision, manifest.nodes, manifest.ledgers, stored_bytes(manifest)),
                            *(manifest.instance_id, "complete"),
                        )
                        for each in found
                    ],
                )
            else:
                say(f"there are no backups in {from_}", err=True)

        run(as_json, work)

    @app.command()
    def verify(from_: From, backup: Backup = None, endpoint: Endpoint = None, as_json: AsJson = False) -> None:
        """Read all of a backup and compare it with its checksums. Exit code 1: the backup cannot be used."""

        async def work() -> None:
            from quire_bookie.backup import reading

            objects = object_store_of(from_, endpoint)
            manifest = await reading.choose_backup(objects, backup)
            await reading.verify(objects, manifest)
            tell(
                as_json,
                row_of(manifest) | {"verified": True},
                f"backup {manifest.name} is intact: {manifest.nodes} nodes",
            )

        run(as_json, work)
