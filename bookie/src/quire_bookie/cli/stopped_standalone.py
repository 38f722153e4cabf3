"""Starts the metadata store and bookies of a stopped standalone on loopback, for the commands of a review.

Neither a broker nor auto-recovery runs, and the metadata keeps garbage collection on hold.
"""

import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire_bookie.env.disk import Disk
    from quire_bookie.metadata.store import MetadataStore
    from quire_bookie.server.settings import BookieSettings

_HOST = "127.0.0.1"


def bookies_of(root: Path) -> "dict[str, BookieSettings]":
    """Return the settings of the bookies of a standalone, by folder name."""
    from quire_bookie.server.settings import BookieSettings

    names = [path.name for path in root.glob("bookie-*") if path.name.removeprefix("bookie-").isdigit()]
    return {
        name: BookieSettings(data_dir=str(root / name), listen=_HOST, advertise=_HOST, port=0) for name in sorted(names)
    }


@contextlib.asynccontextmanager
async def stopped_standalone(root: Path, *, bookies: bool) -> "AsyncIterator[MetadataStore]":
    """Open its metadata, and start its bookies if `bookies` is set. StartupError: it runs, or cannot be started."""
    from quire_bookie.cli.data_folder import STANDALONE_FOLDER, claim_data_folder
    from quire_bookie.env.local_disk import LocalDisk
    from quire_bookie.errors import StartupError
    from quire_bookie.metadata.local.store import LocalMetadataStore

    async with contextlib.AsyncExitStack() as undo:
        disk = LocalDisk()
        undo.callback(disk.close)
        undo.callback((await claim_data_folder(disk, str(root), STANDALONE_FOLDER)).release)
        if not await disk.exists(f"{root}/metadata"):
            raise StartupError(f"{root} contains no embedded metadata store; --data names the folder of a standalone")
        store = await LocalMetadataStore.open(root / "metadata")
        undo.push_async_callback(store.close)
        if bookies:
            # The start logs many lines that are of no use to the reader of a table.
            logging.getLogger("quire").setLevel(logging.WARNING)
            for settings in bookies_of(root).values():
                await _start(settings, store, disk, undo)
        yield store


async def _start(
    settings: "BookieSettings", store: "MetadataStore", disk: "Disk", undo: contextlib.AsyncExitStack
) -> None:
    from quire_bookie.admin.listening import listen, port_of
    from quire_bookie.admin.web import BookieWeb
    from quire_bookie.env.chance import SystemChance
    from quire_bookie.env.clock import SystemClock
    from quire_bookie.server import start_bookie

    listening = listen(_HOST, 0)
    undo.callback(listening.close)
    clock, chance = SystemClock(), SystemChance()
    settings = replace(settings, http_port=port_of(listening))
    running = await start_bookie(settings, metadata=store, disk=disk, clock=clock, chance=chance)
    undo.push_async_callback(running.stop)
    web = BookieWeb(store, disk, {}, clock=clock, chance=chance)
    await web.open(listening)
    undo.push_async_callback(web.close)
    web.serve(running)
