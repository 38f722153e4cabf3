"""`quire doctor`: checks disk, kernel, limits, clock and metadata store of this host, and recommends changes."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quire_bookie.cli.commands import EXIT_FAILED, Commands
from quire_bookie.cli.metadata_cluster import Metadata
from quire_bookie.cli.settings import ConfigFile, Settings
from quire_bookie.cli.tables import Column, Output, OutputOption, print_rows

if TYPE_CHECKING:
    from quire_bookie.cli.findings import Finding

_READS = 10
_PATH = "/ledgers/INSTANCEID"


def register(commands: Commands) -> None:
    """Add `quire doctor`."""

    @commands.app.command()
    def doctor(
        data: Annotated[
            list[str] | None, typer.Option("--data", help="Folder of data; may be repeated. [./quire-data]")
        ] = None,
        metadata: Metadata = None,
        config: ConfigFile = None,
        set_: Settings = None,
        output: OutputOption = Output.TABLE,
    ) -> int:
        """Check this host before or while it serves, and recommend changes. Exit code 1: something must be changed.

        It writes and syncs 80 KiB in a temporary file of each folder, and reads from the metadata store.
        """
        import asyncio  # not needed for --help

        from quire_bookie.cli.findings import Finding, Verdict, of_disk, of_host
        from quire_bookie.env.host_facts import disk_facts, host_facts
        from quire_bookie.errors import MetadataError

        found: list[Finding] = []
        for folder in data or ["./quire-data"]:
            try:
                found += of_disk(disk_facts(_existing(folder)))
            except OSError as error:
                advice = "give the user that runs Quire the right to write there"
                found.append(Finding(f"folder {folder}", Verdict.FAILED, error.strerror or str(error), advice))
        found += of_host(host_facts())
        if metadata is not None:
            try:
                found.append(asyncio.run(_metadata(commands, metadata, config, set_)))
            except MetadataError as error:
                advice = "start etcd, or correct the address or the credentials"
                found.append(Finding(f"metadata at {metadata}", Verdict.FAILED, str(error), advice))
        columns = [
            Column("check", lambda row: row["check"]),
            Column("verdict", lambda row: row["verdict"]),
            Column("found", lambda row: row["value"]),
            Column("recommended", lambda row: row["advice"] or None),
        ]
        print_rows([asdict(one) for one in found], columns, output, name=lambda row: row["check"], empty="")
        return EXIT_FAILED if any(one.verdict is Verdict.FAILED for one in found) else 0


def _existing(folder: str) -> str:
    """Return the folder, or the one in which it will be created."""
    path = Path(os.path.abspath(folder))
    while not path.exists():
        path = path.parent
    return str(path)


async def _metadata(commands: Commands, url: str, config: Path | None, set_: list[str] | None) -> "Finding":
    """Time some reads of the metadata store. MetadataError if it cannot be reached."""
    import asyncio

    from quire_bookie.cli.findings import of_etcd
    from quire_bookie.cli.metadata_cluster import Cluster, opened_store, settings_of

    times_ms = []
    async with opened_store(Cluster(settings_of(commands, url, config, set_), False)) as store:
        clock = asyncio.get_running_loop()
        for _ in range(_READS):
            began_s = clock.time()
            await store.get(_PATH)
            times_ms.append((clock.time() - began_s) * 1000)
    return of_etcd(url, times_ms)
