"""`quire bookie inspect-journal|inspect-log|inspect-index|ledger|scrub|rebuild-index`: inspect a stopped bookie.

Owns arguments, tables and exit codes; `journal.inspect` and `storage.inspect` read the files. All commands but
`rebuild-index` only read, and all require that no process has locked the folders. Exit code 1: damage was found.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.commands import EXIT_FAILED, Commands
from quire_bookie.cli.output import say
from quire_bookie.cli.progress import progress
from quire_bookie.cli.settings import ConfigFile, Settings, load_settings
from quire_bookie.cli.tables import Output, OutputOption, print_data, print_table
from quire_bookie.dataclass import dataclass

if TYPE_CHECKING:
    from quire_bookie.env.disk import Disk
    from quire_bookie.env.index_store import IndexStore
    from quire_bookie.server.settings import BookieSettings

Data = Annotated[str | None, typer.Option(help="Folder for journal and ledgers. [./quire-data]")]
Tables = dict[str, list[dict[str, Any]]]
"""Rows by the title of the table."""


@dataclass(slots=True)
class Stopped:
    """The folders of a stopped bookie, locked."""

    disk: "Disk"
    settings: "BookieSettings"

    @contextlib.asynccontextmanager
    async def index(self) -> AsyncIterator["IndexStore"]:
        """Open the index read-only. DamagedError names the remedy; StartupError if the index is missing."""
        from quire_bookie.errors import DamagedError, StartupError
        from quire_bookie.storage.index.index_commits import REBUILD_REMEDY
        from quire_bookie.storage.index.index_rocksdb import RocksIndexStore

        path = self.settings.index_path
        if not await self.disk.exists(path):
            raise StartupError(f"the index {path} is missing: {REBUILD_REMEDY}")
        try:
            index = await RocksIndexStore.open(path, cache_bytes=self.settings.index_cache_bytes, read_only=True)
        except DamagedError as error:
            raise DamagedError(path, 0, f"{error}; {REBUILD_REMEDY}") from error
        try:
            yield index
        finally:
            await index.close()


Work = Callable[[Stopped], Coroutine[Any, Any, tuple[Tables, bool]]]
"""Reads the folders and returns the tables, and whether it found damage."""


def register(commands: Commands, app: typer.Typer) -> None:
    """Add the commands."""

    def run(data: str | None, config: Any, set_: Any, output: Output, work: Work) -> None:
        import asyncio  # not needed for --help

        from quire_bookie.cli.bookie_settings import bookie_settings
        from quire_bookie.config.bookie import BookieConfig

        loaded = load_settings(commands, BookieConfig, {"data": data}, config, set_)
        tables, damaged = asyncio.run(_with_folders(bookie_settings(loaded.config), work))
        _print(tables, output)
        raise typer.Exit(EXIT_FAILED if damaged else 0)

    @app.command("inspect-journal")
    def inspect_journal(
        data: Data = None, output: OutputOption = Output.TABLE, config: ConfigFile = None, set_: Settings = None
    ) -> None:
        """Show every journal file: generation, groups, records, and damage."""
        run(data, config, set_, output, _journals)

    @app.command("inspect-log")
    def inspect_log(
        log: Annotated[str | None, typer.Option("--log", help="Only this entry log, by its hexadecimal id.")] = None,
        ledger: Annotated[int | None, typer.Option(help="List the records of this ledger.")] = None,
        data: Data = None,
        output: OutputOption = Output.TABLE,
        config: ConfigFile = None,
        set_: Settings = None,
    ) -> None:
        """Read the entry logs and show the contents of each, and the gaps without an intact record."""
        run(data, config, set_, output, lambda stopped: _logs(stopped, log, ledger, output))

    @app.command("inspect-index")
    def inspect_index(
        data: Data = None, output: OutputOption = Output.TABLE, config: ConfigFile = None, set_: Settings = None
    ) -> None:
        """Read the whole index and count its contents."""
        run(data, config, set_, output, _index)

    @app.command()
    def ledger(
        ledger_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Id of the ledger. [all ledgers]")] = None,
        data: Data = None,
        output: OutputOption = Output.TABLE,
        config: ConfigFile = None,
        set_: Settings = None,
    ) -> None:
        """Show the state of a ledger, and the entries and bytes that this bookie's entry logs hold of it."""
        run(data, config, set_, output, lambda stopped: _ledger(stopped, ledger_id))

    @app.command()
    def scrub(
        data: Data = None, output: OutputOption = Output.TABLE, config: ConfigFile = None, set_: Settings = None
    ) -> None:
        """Check every record of every entry log, and the index against the records. Exit code 1: damage was found."""
        run(data, config, set_, output, lambda stopped: _scrub(stopped, output))

    @app.command("rebuild-index")
    def rebuild_index(
        accept_limbo: Annotated[
            bool,
            typer.Option("--accept-limbo", help="Continue despite missing logs; put affected ledgers in limbo."),
        ] = False,
        up_to_ledger: Annotated[
            list[int] | None, typer.Option(help="Highest ledger id of the cluster; required if index.proof is missing.")
        ] = None,
        data: Data = None,
        output: OutputOption = Output.TABLE,
        config: ConfigFile = None,
        set_: Settings = None,
    ) -> None:
        """Rebuild the index from the entry logs and replace the present one."""
        run(data, config, set_, output, lambda stopped: _rebuild(stopped, accept_limbo, up_to_ledger or [], output))


async def _with_folders(settings: "BookieSettings", work: Work) -> tuple[Tables, bool]:
    """Run `work` on the locked folders of a Quire bookie. StartupError if they are not, or are in use."""
    from quire_bookie.env.local_disk import LocalDisk
    from quire_bookie.errors import StartupError
    from quire_bookie.server.start.storage_folders import StorageFolders, inspect

    folders = StorageFolders(settings.journal_paths, settings.ledger_paths, settings.index_dir)
    disk = LocalDisk()
    with contextlib.ExitStack() as undo:
        undo.callback(disk.close)
        found = await inspect(disk, folders)
        if all(folder.cookie is None for folder in found):
            raise StartupError(f"no bookie's data in {', '.join(folders.places())}")
        for folder in found:
            if folder.cookie is None:
                continue
            try:
                undo.callback(disk.lock_dir(f"{folder.path}/current").release)
            except BlockingIOError as error:
                raise StartupError(f"the folder {folder.path} is in use: stop the bookie first") from error
        return await work(Stopped(disk, settings))


async def _journals(stopped: Stopped) -> tuple[Tables, bool]:
    from quire_bookie.journal.inspect import inspect_journal

    tables: Tables = {}
    damaged = False
    for directory in stopped.settings.journal_paths:
        mark, files = await inspect_journal(stopped.disk, directory)
        at = "none" if mark is None else f"generation {mark.position.generation}, offset {mark.position.offset}"
        tables[f"{directory}: mark at {at}"] = [
            {
                "file": each.path.rpartition("/")[2],
                "generation": each.generation,
                "needed": each.live,
                "bytes": each.size_bytes,
                "end": each.end,
                "groups": each.groups,
                "entries": each.entries,
                "keys": each.keys,
                "fences": each.fences,
                "lacs": each.lacs,
                "ledgers": len(each.ledgers),
                "damaged": each.damaged,
                "what": each.what,
            }
            for each in files
        ]
        damaged = damaged or any(each.damaged for each in files)
    return tables, damaged


async def _logs(stopped: Stopped, only: str | None, ledger: int | None, output: Output) -> tuple[Tables, bool]:
    from quire_bookie.errors import ConfigError
    from quire_bookie.model import LedgerId
    from quire_bookie.storage.inspect import inspect_log, list_logs

    paths = await list_logs(stopped.disk, stopped.settings.ledger_paths)
    if only is not None:
        try:
            wanted = int(only, 16)
        except ValueError as error:
            raise ConfigError(f"--log {only}: not a hexadecimal number; give the id as in the file's name") from error
        if wanted not in paths:
            raise ConfigError(f"--log {only}: no such entry log; `inspect-log` without --log lists them")
        paths = {wanted: paths[wanted]}
    wanted_ledger = None if ledger is None else LedgerId(ledger)
    with progress(
        "reading entry logs", await _sizes(stopped.disk, paths.values()), quiet=not output.for_people
    ) as advance:
        found = [await inspect_log(stopped.disk, log, path, wanted_ledger, advance) for log, path in paths.items()]
    tables: Tables = {
        "entry logs": [
            {
                "log": f"{each.log:x}",
                "path": each.path,
                "bytes": each.size_bytes,
                "sealed": each.sealed,
                "ledgers": len(each.spans),
                "entries": each.entries,
                "states": each.states,
                "what": each.what,
            }
            for each in found
        ]
    }
    if only is not None and ledger is None:
        tables["ledgers"] = [
            {"ledger": held, **asdict(span)} for each in found for held, span in sorted(each.spans.items())
        ]
    if ledger is not None:
        tables[f"records of ledger {ledger}"] = [
            {"log": f"{each.log:x}", "entry": "state" if entry < 0 else entry, "offset": offset, "bytes": size}
            for each in found
            for entry, offset, size in each.records
        ]
    tables["no intact record"] = [
        {"log": f"{each.log:x}", "offset": gap.offset, "end": gap.end, "suspect": _suspect(gap.suspect)}
        for each in found
        for gap in each.gaps
    ]
    # The end of an unsealed log may be a flush that a crash cut off; only a comparison with the index decides: `scrub`.
    return tables, any(each.what and (each.sealed or not each.size_bytes) for each in found)


def _suspect(suspect: tuple[int, int] | None) -> str:
    return "" if suspect is None else f"ledger {suspect[0]} entry {suspect[1]}"


async def _index(stopped: Stopped) -> tuple[Tables, bool]:
    from quire_bookie.storage.inspect import inspect_index

    async with stopped.index() as index:
        found = await inspect_index(index)
    fields = asdict(found)
    logs, damage, limbo = fields.pop("logs"), fields.pop("damage"), fields.pop("limbo")
    fields["limbo"] = "no" if not limbo["active"] else f"up to {limbo['short_bound']} and {limbo['long_bound']}"
    tables: Tables = {
        "index": [{"what": key, "value": value} for key, value in fields.items()],
        "entry logs": [
            {"log": f"{each['log']:x}", "durable bytes": each["durable_bytes"], "sealed": each["sealed"]}
            for each in logs
        ],
        "damage": [{"what": what} for what in damage],
    }
    return tables, bool(damage)


async def _ledger(stopped: Stopped, ledger: int | None) -> tuple[Tables, bool]:
    from quire_bookie.model import LedgerId
    from quire_bookie.storage.inspect import inspect_ledger, inspect_ledgers

    async with stopped.index() as index:
        if ledger is None:
            held = await inspect_ledgers(index)
            return {"ledgers": [_state_row(info, limbo) for info, limbo in held]}, False
        found = await inspect_ledger(index, LedgerId(ledger))
    tables: Tables = {
        f"ledger {ledger}": [
            {**_state_row(found.info, found.limbo), "entries": found.entries, "bytes": found.size_bytes}
        ],
        "entries held": [{"first": first, "last": last, "count": last - first + 1} for first, last in found.ranges],
        "where": [{"log": f"{log:x}", "bytes": size} for log, size in sorted(found.bytes_by_log.items())],
        "damage": [{"what": what} for what in found.damage],
    }
    return tables, bool(found.damage)


def _state_row(info: Any, limbo: bool) -> dict[str, Any]:
    """Return the state of a ledger without its master key, which is secret."""
    return {
        "ledger": info.ledger_id,
        "fenced": info.fenced or limbo,
        "deleted": info.deleted,
        "limbo": limbo,
        "explicit LAC": None if info.explicit_lac is None else info.explicit_lac_entry,
        "key": "lost" if info.key_unknown else "known",
    }


async def _scrub(stopped: Stopped, output: Output) -> tuple[Tables, bool]:
    from quire_bookie.storage.inspect import check_all, list_logs

    paths = await list_logs(stopped.disk, stopped.settings.ledger_paths)
    with progress(
        "checking entry logs", await _sizes(stopped.disk, paths.values()), quiet=not output.for_people
    ) as advance:
        async with stopped.index() as index:
            found, stats = await check_all(stopped.disk, index, stopped.settings.ledger_paths, advance)
    rows = [
        {
            "ledger": each.ledger if each.ledger >= 0 else "?",
            "first": each.first if each.first >= 0 else "",
            "last": each.last if each.last >= 0 else "",
            "path": each.path,
            "offset": each.offset,
            "what": each.what,
        }
        for each in sorted(found, key=lambda damage: (damage.ledger, damage.first, damage.path, damage.offset))
    ]
    return {"checked": [asdict(stats)], "damage": rows}, bool(found)


async def _rebuild(stopped: Stopped, accept_limbo: bool, up_to: Sequence[int], output: Output) -> tuple[Tables, bool]:
    from quire_bookie.model import LedgerId
    from quire_bookie.storage.inspect import list_logs
    from quire_bookie.storage.rebuilding.index_place import IndexPlace, rebuild_in_place

    settings = stopped.settings
    place = IndexPlace(settings.index_path, settings.ledger_paths, settings.index_cache_bytes)
    paths = await list_logs(stopped.disk, settings.ledger_paths)
    done_before = 0
    with progress(
        "rebuilding the index", await _sizes(stopped.disk, paths.values()), quiet=not output.for_people
    ) as advance:

        def rebuilt(done: int, _total: int) -> None:
            nonlocal done_before
            advance(done - done_before)
            done_before = done

        report = await rebuild_in_place(
            stopped.disk,
            place,
            accept_limbo=accept_limbo,
            limbo_bounds=[LedgerId(bound) for bound in up_to],
            progress=rebuilt,
        )
    counts = {
        key: getattr(report, key) for key in ("logs", "bytes_read", "ledgers", "deleted_ledgers", "entries", "limbo")
    }
    tables: Tables = {
        "rebuilt": [counts],
        "damage": [asdict(each) for each in report.damage],
        "lost entries": [
            {"ledger": ledger, "between": first, "and": last, "entries": count}
            for ledger, first, last, count in report.losses
        ],
        "came back fenced": [{"ledger": ledger, "key": _key(ledger in report.without_key)} for ledger in report.fenced],
    }
    return tables, bool(report.damage)


def _key(lost: bool) -> str:
    return "lost: the running bookie reads it from the metadata" if lost else "known"


async def _sizes(disk: "Disk", paths: Iterable[str]) -> int:
    total = 0
    for path in paths:
        file = await disk.open_read_only(path)
        total += await file.size()
        await file.close()
    return total


def _print(tables: Tables, output: Output) -> None:
    if not output.for_people:
        print_data(list(tables) if output is Output.NAME else tables, output)
        return
    for title, rows in tables.items():
        if rows:
            say(title)
            print_table(list(rows[0]), [list(row.values()) for row in rows])
