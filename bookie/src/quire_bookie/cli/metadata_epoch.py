"""`quire metadata raise-epoch`: accepts metadata that went back in time, if there is no backup to restore.

Owns arguments and output; the steps are in `quire_bookie.backup.older_copy`.
"""

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.commands import Commands
from quire_bookie.cli.metadata_cluster import Cluster, on_cluster, opened_store, tell
from quire_bookie.cli.metadata_restore import access_to
from quire_bookie.cli.output import say
from quire_bookie.cli.tables import print_table

if TYPE_CHECKING:
    from quire_bookie.backup.older_copy import Memories

_CONSEQUENCES = """\
with --yes, in one transaction:
  1. the epoch rises above every epoch that a bookie remembers: bookies and clients accept this metadata again
  2. garbage collection of all bookies goes on hold, and auto-recovery is switched off
  3. new ledgers take long ids that no bookie can hold; brokers that start wait
  4. the review of a restore begins: `quire metadata cookies list`, `orphans list`, `orphans adopt` or `drop`,
     `quire topic attach`, and at the end `quire metadata release-hold` (docs/kubernetes/backup.md)
it restores nothing: topics, cursors and policies stay as in this copy. If the newer data still exist, put them back
instead; if there is a newer backup, restore it into an empty store."""


def register(commands: Commands, app: typer.Typer) -> None:
    """Add the command to `quire metadata`."""

    @on_cluster(commands, app, "raise-epoch")
    async def raise_epoch(
        cluster: Cluster,
        yes: Annotated[bool, typer.Option("--yes", help="Apply it. Without: only show what would be done.")] = False,
    ) -> None:
        """Accept metadata that went back in time, with a hold and a review. For a cluster without a newer backup."""

        from quire_bookie.backup.format import BackupError
        from quire_bookie.backup.older_copy import ask_memories, begin_review, refuse_second_review
        from quire_bookie.env.clock import SystemClock
        from quire_bookie.metadata.cookies import Cookies

        async with contextlib.AsyncExitStack() as undo:
            store = await undo.enter_async_context(opened_store(cluster, bookies=True))
            await refuse_second_review(store)
            access = await undo.enter_async_context(access_to(cluster, store))
            found = await ask_memories(access, {*await Cookies(store).bookies(), *access.registered})
            row: dict[str, Any] = _row(found) | {"raised": False}
            if not cluster.as_json:
                _show(found)
            if not found.doubts():
                raise BackupError(
                    f"the epoch stays {found.now.epoch}: no bookie that answered remembers a later epoch or a higher "
                    "counter than the metadata have. Start the bookies that did not answer; if only a client reports "
                    "a doubt, restart it"
                )
            if not yes:
                tell(cluster.as_json, row, f"{_CONSEQUENCES}\nnothing was changed; give --yes to apply it")
                return
            now_ms = SystemClock().now_ms()
            epoch = await begin_review(store, found, name=f"older-copy-{now_ms // 1000}", now_ms=now_ms)
        text = f"the epoch is {epoch}, and the review is open: go on with `quire metadata orphans list`"
        tell(cluster.as_json, row | {"raised": True, "newEpoch": epoch}, text)


def _row(found: "Memories") -> dict[str, Any]:
    doubts = found.doubts()
    return {
        "epoch": found.now.epoch,
        "counter": found.now.short,
        "longCounter": found.now.long,
        "bookies": [
            {"bookie": bookie, "doubt": doubts.get(bookie)}
            | (
                {"remembers": False}
                if report is None
                else {
                    "remembers": True,
                    "epoch": report.seen.epoch,
                    "counter": report.seen.short,
                    "longCounter": report.seen.long,
                    "highestLedger": report.short,
                    "highestLongLedger": report.long,
                }
            )
            for bookie, report in found.reports.items()
        ],
        "silent": dict(found.silent),
    }


def _show(found: "Memories") -> None:
    doubts = found.doubts()
    rows: list[tuple[Any, ...]] = [
        ("the metadata", found.now.epoch, found.now.short, found.now.long, None, None, None),
    ]
    for bookie, report in found.reports.items():
        if report is None:
            rows.append((bookie, None, None, None, None, None, "a Java bookie remembers nothing"))
            continue
        seen = report.seen
        why = doubts.get(bookie, "no doubt")
        rows.append((bookie, seen.epoch, seen.short, seen.long, report.short, report.long, why))
    names = ("who", "epoch", "counter", "long counter", "highest ledger", "highest long ledger", "doubt")
    print_table(names, rows)
    for why in found.silent.values():
        say(f"not complete: {why}", err=True)
