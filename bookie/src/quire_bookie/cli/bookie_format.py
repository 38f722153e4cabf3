"""`quire bookie format`: loads the settings, asks for confirmation, and prints the outcome of `formatting`."""

from typing import TYPE_CHECKING, Annotated

import typer

from quire_bookie.cli.commands import EXIT_FAILED, Commands
from quire_bookie.cli.output import say
from quire_bookie.cli.settings import ConfigFile, Settings, load_settings

if TYPE_CHECKING:
    from quire_bookie.config.bookie import BookieConfig


def register(commands: Commands, app: typer.Typer) -> None:
    """Add the command."""

    @app.command("format")
    def format_(
        data: Annotated[str | None, typer.Option(help="Folder for journal and ledgers. [./quire-data]")] = None,
        metadata: Annotated[str | None, typer.Option(help="The cluster's etcd: etcd://host:port,host:port")] = None,
        yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
        accept_loss: Annotated[
            bool, typer.Option("--accept-loss", help="Format even if ledgers still name this bookie.")
        ] = False,
        config: ConfigFile = None,
        set_: Settings = None,
    ) -> None:
        """Delete all data of a stopped bookie and remove it from the cluster. Its next start creates a new bookie."""
        import asyncio  # not needed for --help

        from quire_bookie.config.bookie import BookieConfig

        loaded = load_settings(commands, BookieConfig, {"data": data, "metadata": metadata}, config, set_)
        deleted = asyncio.run(_run(loaded.config, yes=yes, accept_loss=accept_loss))
        raise typer.Exit(0 if deleted else EXIT_FAILED)


async def _run(config: "BookieConfig", *, yes: bool, accept_loss: bool) -> bool:
    from quire_bookie.cli.bookie_settings import bookie_settings
    from quire_bookie.cli.formatting import FormatPlan, format_bookie
    from quire_bookie.cli.metadata_settings import shared_metadata_url
    from quire_bookie.env.local_disk import LocalDisk
    from quire_bookie.metadata.opening import open_metadata_store

    def confirm(plan: FormatPlan) -> bool:
        name = plan.bookie or "no bookie"
        say(f"{name}: {len(plan.doomed)} files and folders, {plan.size_bytes:,} bytes:")
        for path in plan.doomed:
            say(f"  {path}")
        if plan.held_by is not None:
            say(f"THIS MAY LOSE DATA: {plan.held_by}")
        return yes or typer.confirm("Delete all of it?")

    url = shared_metadata_url(config.metadata, config.key_of("metadata"))
    settings = bookie_settings(config)
    disk = LocalDisk()
    store = await open_metadata_store(url, settings.metadata)
    try:
        folders = (*settings.journal_paths, *settings.ledger_paths, *filter(None, [settings.index_dir]))
        done = await format_bookie(disk, store, folders, accept_loss=accept_loss, confirm=confirm)
    finally:
        await store.close()
        disk.close()
    say("nothing was deleted" if done is None else f"formatted; bookie {done.bookie} is removed")
    return done is not None
