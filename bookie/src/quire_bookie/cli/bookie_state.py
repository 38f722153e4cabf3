"""`quire bookie info` and `quire bookie read-only`: a running bookie over HTTP, a stopped one through its folders."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.output import say
from quire_bookie.cli.rest import ask, get
from quire_bookie.cli.settings import ConfigFile, Settings, load_settings
from quire_bookie.cli.tables import Output, OutputOption, print_one
from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from quire_bookie.config.bookie import BookieConfig
    from quire_bookie.env.disk import Disk

Data = Annotated[str | None, typer.Option(help="Folder for journal and ledgers. [./quire-data]")]
RunningAt = Annotated[
    str | None, typer.Option("--http", help="HTTP address of the running bookie.", envvar="QUIRE_BOOKIE_HTTP")
]


def register(commands: Commands, app: typer.Typer) -> None:
    """Add both commands."""

    @app.command()
    def info(
        data: Data = None,
        http: RunningAt = None,
        output: OutputOption = Output.TABLE,
        config: ConfigFile = None,
        set_: Settings = None,
    ) -> None:
        """Show identity, state and disk usage of a bookie."""
        import asyncio  # not needed for --help

        from quire_bookie.config.bookie import BookieConfig

        if http is not None:
            found = _of_running(http)
        else:
            found = asyncio.run(_of_folders(load_settings(commands, BookieConfig, {"data": data}, config, set_).config))
        print_one(found, found, output, name=found.get("bookie", http))

    @app.command("read-only")
    def read_only(
        wish: Annotated[str, typer.Argument(metavar="on|off", help="on: refuse new entries; off: accept them again.")],
        data: Data = None,
        http: RunningAt = None,
        config: ConfigFile = None,
        set_: Settings = None,
    ) -> None:
        """Make a bookie read-only by request of the operator, which survives restarts, or withdraw the request."""
        import asyncio  # not needed for --help

        from quire_bookie.config.bookie import BookieConfig

        if wish not in ("on", "off"):
            raise ConfigError(f"read-only {wish}: give on or off")
        if http is not None:
            state = ask(http, "PUT", "/api/v1/bookie/state/readonly", {"readOnly": wish == "on"})
            say(_outcome(wish == "on", bool(state["readOnly"])))
            return
        loaded = load_settings(commands, BookieConfig, {"data": data}, config, set_)
        asyncio.run(_wish_in_folders(loaded.config, wish == "on"))
        say(_outcome(wish == "on", wish == "on"))


def _outcome(wished: bool, is_read_only: bool) -> str:
    if wished:
        return "read-only, until `quire bookie read-only off`"
    if is_read_only:
        return (
            "the operator's request is withdrawn; it stays read-only for another reason: see `quire bookie info --http`"
        )
    return "writable"


def _of_running(http: str) -> dict[str, Any]:
    """Return the state that the bookie reports."""
    state = get(http, "/api/v1/bookie/state")
    space = get(http, "/api/v1/bookie/info")
    found = {"at": http, **state, **space, **get(http, "/api/v1/bookie/last_log_mark")}
    return {key: ", ".join(value) if isinstance(value, list) else value for key, value in found.items()}


async def _of_folders(config: "BookieConfig") -> dict[str, Any]:
    """Return the state that the folders show, whether the bookie runs or not."""
    from quire_bookie.cli.bookie_settings import bookie_settings
    from quire_bookie.env.local_disk import LocalDisk
    from quire_bookie.errors import StartupError
    from quire_bookie.server.start.storage_folders import StorageFolders, inspect
    from quire_bookie.server.upkeep.read_only import operator_wish

    settings = bookie_settings(config)
    folders = StorageFolders(settings.journal_paths, settings.ledger_paths, settings.index_dir)
    disk = LocalDisk()
    try:
        found = await inspect(disk, folders)
        stamped = [folder for folder in found if folder.cookie is not None]
        if not stamped:
            raise StartupError(f"no bookie's data in {', '.join(folders.places())}")
        cookie = stamped[0].cookie
        assert cookie is not None
        shown: dict[str, Any] = {"bookie": str(cookie.bookie), "cluster": cookie.instance_id}
        for folder in found:
            what = "empty"
            if folder.cookie is not None:
                what = f"{folder.state.value}, {await disk.folder_bytes(folder.path):,} bytes"
            roles = (folder.place or "").replace("\n", ", ").strip(", ")
            shown[folder.path] = f"{roles or 'not stamped'}: {what}"
            try:
                if folder.cookie is not None:
                    disk.lock_dir(f"{folder.path}/current").release()
            except BlockingIOError:
                shown["running"] = True
        shown.setdefault("running", False)
        shown["read-only by operator"] = await operator_wish(disk, settings.ledger_paths)
        shown["in limbo"] = await _in_limbo(disk, settings.ledger_paths)
        return shown
    finally:
        disk.close()


async def _in_limbo(disk: "Disk", ledger_folders: Sequence[str]) -> str:
    """Return up to which ledger this bookie answers *unknown*; the limbo record is in one of the folders."""
    from quire_bookie.errors import DamagedError
    from quire_bookie.storage.ledgers.limbo import read_limbo_file

    for folder in ledger_folders:
        try:
            limbo = await read_limbo_file(disk, folder)
        except DamagedError as error:
            return str(error)
        if limbo is not None:
            ids = ", ".join(str(bound) for bound in (limbo.short_bound, limbo.long_bound) if bound >= 0)
            return f"up to ledger {ids}" if limbo.active else "no longer"
    return "no"


async def _wish_in_folders(config: "BookieConfig", on: bool) -> None:
    from quire_bookie.cli.bookie_settings import bookie_settings
    from quire_bookie.env.clock import SystemClock
    from quire_bookie.env.local_disk import LocalDisk
    from quire_bookie.server.upkeep.read_only import set_stopped_read_only

    disk = LocalDisk()
    try:
        await set_stopped_read_only(disk, bookie_settings(config).ledger_paths, on, SystemClock())
    finally:
        disk.close()
