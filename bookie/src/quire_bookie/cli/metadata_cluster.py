"""Shares options, access to the cluster and output among the `quire metadata` commands.

Each command works on etcd or on the folder of a stopped standalone. With `--json` it prints one JSON value on one line.
"""

import contextlib
import inspect
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.output import say
from quire_bookie.cli.settings import ConfigFile, Settings, load_settings
from quire_bookie.cli.tables import json_for_terminal
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError, QuireError

if TYPE_CHECKING:
    from quire_bookie.backup.format import Manifest
    from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
    from quire_bookie.metadata.store import MetadataStore
    from quire_bookie.object_store.store import ObjectStore

AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON, even for an error.")]
Metadata = Annotated[str | None, typer.Option(help="The cluster's etcd: etcd://host:port,host:port")]
From = Annotated[str, typer.Option("--from", help="Location of backups: s3://bucket/prefix or file:///folder.")]
Backup = Annotated[str | None, typer.Option("--backup", help="Name of a backup. [the newest]")]
StandaloneData = Annotated[str | None, typer.Option("--data", help="Folder of a stopped standalone, instead of etcd.")]
Endpoint = Annotated[str | None, typer.Option("--endpoint", help="URL of an S3 service. [AWS_ENDPOINT_URL, or AWS]")]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Holds the settings of the cluster that a command works on, and whether the output is JSON."""

    settings: "AutoRecoveryProcessConfig"
    as_json: bool
    data: str | None = None
    """Folder of a stopped standalone, instead of a cluster on etcd."""


def on_cluster(
    commands: Commands, app: typer.Typer, name: str | None = None
) -> Callable[[Callable[Concatenate[Cluster, ...], Coroutine[Any, Any, None]]], None]:
    """Register a coroutine function as a command, with its own options and those that select the cluster.

    `name` is the name of the command if it differs from the function's.
    """

    def add(work: Callable[Concatenate[Cluster, ...], Coroutine[Any, Any, None]]) -> None:
        def command(
            metadata: Metadata = None,
            as_json: AsJson = False,
            config: ConfigFile = None,
            set_: Settings = None,
            data: StandaloneData = None,
            **own: Any,
        ) -> None:
            root = None if data is None else os.path.abspath(data)

            async def on_its_cluster() -> None:
                if data is not None and metadata is not None:
                    raise ConfigError("--data and --metadata: give one of them")
                await work(Cluster(settings_of(commands, metadata, config, set_), as_json, root), **own)

            run(as_json, on_its_cluster)

        # Typer reads the options from these attributes of a function.
        _cluster, *mine = inspect.signature(work).parameters.values()
        *shared, _own = inspect.signature(command).parameters.values()
        taken = [*mine, *shared]
        command.__name__, command.__doc__ = work.__name__, work.__doc__
        command.__annotations__ = {each.name: each.annotation for each in taken}
        setattr(command, "__signature__", inspect.Signature(taken))  # noqa: B010  unknown to type checkers
        app.command(name)(command)

    return add


def run(as_json: bool, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a command. With JSON output, its error is also printed on standard output."""
    import asyncio  # not needed for --help

    try:
        asyncio.run(work())
    except QuireError as error:
        if as_json:
            print(json.dumps({"error": str(error)}))
        raise


def tell(as_json: bool, row: dict[str, Any], text: str) -> None:
    """Print one line: JSON or text."""
    say(json_for_terminal(row) if as_json else text)


def object_store_of(url: str, endpoint: str | None) -> "ObjectStore":
    """Open the location of backups."""
    from quire_bookie.object_store.opening import open_object_store

    return open_object_store(url, os.environ, endpoint)


def settings_of(commands: Commands, metadata: str | None, config: Any, set_: Any) -> "AutoRecoveryProcessConfig":
    """Load the settings of an auto-recovery process, which connects to both etcd and the bookies."""
    from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig

    return load_settings(commands, AutoRecoveryProcessConfig, {"metadata": metadata}, config, set_).config


async def store_of(cluster: Cluster) -> "MetadataStore":
    """Open the cluster's etcd; the caller closes it. ConfigError if `--data` names a stopped standalone."""
    from quire_bookie.cli.metadata_settings import metadata_settings, shared_metadata_url
    from quire_bookie.metadata.opening import open_metadata_store

    if cluster.data is not None:
        raise ConfigError(f"--data {cluster.data}: only the commands of a review accept it; copy the folder instead")
    config = cluster.settings
    url = shared_metadata_url(config.metadata, "metadataServiceUri")
    return await open_metadata_store(url, metadata_settings(config.metadata_session_timeout_ms, config))


@contextlib.asynccontextmanager
async def opened_store(cluster: Cluster, *, bookies: bool = False) -> "AsyncIterator[MetadataStore]":
    """Open the metadata: etcd, or a stopped standalone's store, whose bookies are started if `bookies` is set."""
    if cluster.data is not None:
        from quire_bookie.cli.stopped_standalone import stopped_standalone

        async with stopped_standalone(Path(cluster.data), bookies=bookies) as store:
            yield store
        return
    store = await store_of(cluster)
    try:
        yield store
    finally:
        await store.close()


def row_of(manifest: "Manifest") -> dict[str, Any]:
    """Describe a backup as a JSON object."""
    return {
        "name": manifest.name,
        "created": datetime.fromtimestamp(manifest.created_ms / 1000, UTC).isoformat(timespec="seconds"),
        "cluster": manifest.instance_id,
        "revision": manifest.revision,
        "nodes": manifest.nodes,
        "ledgers": manifest.ledgers,
        "leftOut": manifest.left_out,
        "bytes": stored_bytes(manifest),
        "roots": dict(manifest.roots),
    }


def stored_bytes(manifest: "Manifest") -> int:
    """Return the size of all parts."""
    return sum(part.size_bytes for part in manifest.parts)
