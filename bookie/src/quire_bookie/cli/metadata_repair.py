"""`quire metadata repair`: rebuilds the embedded store of a standalone that refuses to start.

Owns arguments and output; `metadata.local.repair` decides which facts the files prove,
`backup.repairing` which facts the bookies prove.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.commands import EXIT_FAILED
from quire_bookie.cli.metadata_cluster import AsJson, run, tell
from quire_bookie.errors import ConfigError, StartupError

if TYPE_CHECKING:
    from quire_bookie.backup.repairing import Completed
    from quire_bookie.metadata.cookies import Cookie
    from quire_bookie.metadata.local.repair import RepairPlan

Data = Annotated[str | None, typer.Option(help="The data folder of the standalone. [./quire-data]")]
Folder = Annotated[str | None, typer.Option(help="Instead of --data: a folder with only an embedded store.")]
_SHOWN_LEDGERS_MAX = 10


def register(app: typer.Typer) -> None:
    """Add the command to `quire metadata`."""

    @app.command()
    def repair(
        data: Data = None,
        folder: Folder = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be rebuilt.")] = False,
        as_json: AsJson = False,
    ) -> None:
        """Rebuild the embedded metadata store from its files and the bookies. The standalone must be stopped."""

        if data is not None and folder is not None:
            raise ConfigError("--data and --folder: give one of them")
        root = None if folder is not None else Path(data or "quire-data").absolute()
        place = root / "metadata" if root is not None else Path(folder or "").absolute()
        if not place.is_dir():
            raise ConfigError(f"{place} is not a folder; --data takes the folder of a standalone")

        async def work() -> None:
            row, lines = await _repair(root, place, dry_run=dry_run)
            tell(as_json, row, "\n".join(lines))
            if row["problem"] and not row["rebuilt"]:
                raise typer.Exit(EXIT_FAILED)

        run(as_json, work)


async def _repair(root: Path | None, place: Path, *, dry_run: bool) -> tuple[dict[str, Any], list[str]]:
    import asyncio
    import contextlib
    import os

    from quire_bookie.backup.format import BackupError
    from quire_bookie.backup.offline_holdings import cookies_of, inspect_bookies
    from quire_bookie.backup.repairing import begin_anew, complete
    from quire_bookie.cli.data_folder import STANDALONE_FOLDER, claim_data_folder
    from quire_bookie.cli.stopped_standalone import bookies_of
    from quire_bookie.env.clock import SystemClock
    from quire_bookie.env.local_disk import LocalDisk
    from quire_bookie.metadata.local.change_log import LOG_NAME
    from quire_bookie.metadata.local.inspection import FILE_NAME
    from quire_bookie.metadata.local.repair import carry_out, describe, plan_repair
    from quire_bookie.metadata.local.store import lock_folder

    clock = SystemClock()
    with contextlib.ExitStack() as undo:
        disk = LocalDisk()
        undo.callback(disk.close)
        if root is not None:
            undo.callback((await claim_data_folder(disk, str(root), STANDALONE_FOLDER)).release)
        undo.callback(os.close, lock_folder(place))
        plan = await asyncio.to_thread(plan_repair, place)
        bookies = {} if root is None else bookies_of(root)
        if bookies and not any((place / name).exists() for name in (FILE_NAME, LOG_NAME)):
            plan.problem = f"{FILE_NAME} and {LOG_NAME} are missing"
        lines = describe(plan)
        row: dict[str, Any] = _row(plan) | {"dryRun": dry_run, "rebuilt": False, "kept": None}
        if not plan.problem:
            return row, lines
        now = _stamp(clock.now_ms())
        if plan.last is None:
            try:
                cookies = await cookies_of(disk, bookies)
                begin_anew(plan, cookies)
            except (StartupError, BackupError) as error:
                lines.append(f"not rebuilt: the cluster and its bookies: {error}")
                lines.append("nothing was changed; restore the bookies' files, or restore a backup of the folder")
                return row, lines
            row |= {"provedBy": "the cookies of the bookies", "bookies": [one.bookie for one in cookies.values()]}
            lines += _about_cookies(cookies)
        held = await inspect_bookies(disk, bookies)
        done = complete(plan, held, name=f"repair-{now}", now_ms=clock.now_ms())
        lines += _about_bookies(done, held.unread)
        row |= {
            "unnamedLedgers": list(done.unnamed),
            "unread": held.unread,
            "idsAbove": done.counter,
            "underReview": done.under_review,
        }
        if dry_run:
            lines.append("nothing was changed; repeat without --dry-run to apply this")
            return row | {"rebuilt": True}, lines
        aside = await asyncio.to_thread(carry_out, place, plan, now)
        lines.append(f"done; the original files are in {aside}")
        return row | {"rebuilt": True, "kept": str(aside)}, lines


def _row(plan: "RepairPlan") -> dict[str, Any]:
    return {
        "problem": plan.problem or None,
        "provedBy": plan.source or None,
        "nodes": len(plan.nodes),
        "commit": None if plan.last is None else plan.last.sequence,
        "lostCommits": None if plan.lost is None else list(plan.lost),
        "doubtfulCommit": plan.doubtful,
        "whole": plan.whole or not plan.problem,
    }


def _about_cookies(cookies: "dict[str, Cookie]") -> list[str]:
    """Describe which facts the bookies prove without any metadata, and which they cannot prove."""
    bookies = ", ".join(f"{cookie.bookie} ({name})" for name, cookie in cookies.items())
    return [
        f"rebuilt: the cluster id, and the cookies of {bookies}, proved by the bookies' own folders",
        "not rebuilt: tenants, namespaces, policies, topics, subscriptions and their cursors, schemas and custom "
        "metadata of ledgers, which no bookie holds; consumers receive acknowledged messages again",
        "not proved: that these are all bookies. If the folder of one is missing, restore it first",
    ]


def _about_bookies(done: "Completed", unread: list[str]) -> list[str]:
    lines = [f"not read: {what}" for what in unread]
    if done.unnamed:
        shown = ", ".join(map(str, done.unnamed[:_SHOWN_LEDGERS_MAX]))
        more = f" and {len(done.unnamed) - _SHOWN_LEDGERS_MAX} more" if len(done.unnamed) > _SHOWN_LEDGERS_MAX else ""
        what = "not rebuilt" if done.under_review else "deleted before, and not yet removed by bookies"
        lines.append(f"{what}: ledgers that bookies hold and the metadata does not name: {shown}{more}")
    if done.counter > done.counter_was:
        lines.append(f"raised: the counter of ledger ids, from {done.counter_was} to {done.counter}")
    if done.under_review:
        lines.append(
            "held: bookies delete nothing, and the standalone does not start, until `quire metadata orphans list`, "
            "`adopt` or `drop`, and `release-hold` settle the ledgers that are not rebuilt"
        )
    return lines


def _stamp(now_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
