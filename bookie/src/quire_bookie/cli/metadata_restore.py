"""`quire metadata restore`, `orphans`, `cookies` and `release-hold`: the metadata back from a backup, step by step.

Owns arguments, tables and what a person is asked; the steps are in `quire_bookie.backup`.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.commands import Commands, new_app
from quire_bookie.cli.data_folder import LEDGER_PASSWORD_FILE
from quire_bookie.cli.metadata_cluster import (
    Backup,
    Cluster,
    Endpoint,
    From,
    on_cluster,
    opened_store,
    place_of,
    row_of,
    store_of,
    tell,
)
from quire_bookie.cli.output import say
from quire_bookie.cli.tables import print_table
from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

    from quire_bookie.backup.format import Manifest
    from quire_bookie.backup.holdings import BookieQuestions
    from quire_bookie.backup.restore import Found, StoreState
    from quire_bookie.client.security import ClientSecuritySettings
    from quire_bookie.metadata.restoration import Restoration
    from quire_bookie.metadata.store import MetadataStore
    from quire_bookie.metadata.versioned import Versioned
    from quire_bookie.recovery.access import ClusterAccess

Without = Annotated[
    list[str] | None, typer.Option("--without", help="A bookie that is lost for good. May be repeated.")
]
Ledger = Annotated[int | None, typer.Argument(min=0, help="Id of the ledger.")]


class Digest(StrEnum):
    """As BookKeeper names them."""

    CRC32C = "CRC32C"
    CRC32 = "CRC32"
    HMAC = "HMAC"
    DUMMY = "DUMMY"


@dataclass(slots=True)
class Reviewing:
    """What the commands of a review share."""

    access: "ClusterAccess"
    questions: "BookieQuestions"
    restoration: "Versioned[Restoration]"


def register(commands: Commands, app: typer.Typer) -> None:
    """Add the commands to `quire metadata`."""
    _add_restore(commands, app)
    orphans = new_app("Ledgers of which bookies hold what the restored metadata does not say.")
    app.add_typer(orphans, name="orphans")
    _add_orphans_list(commands, orphans)
    _add_adopt(commands, orphans)
    _add_drop(commands, orphans)
    _add_cookies(commands, app)
    _add_release(commands, app)


def _add_restore(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app)
    async def restore(
        cluster: Cluster,
        from_: From,
        backup: Backup = None,
        yes: Annotated[bool, typer.Option("--yes", help="Do it. Without: only say what would be done.")] = False,
        endpoint: Endpoint = None,
    ) -> None:
        """Write a backup into a new, empty etcd, and hold what could destroy what is newer on the bookies."""

        from quire_bookie.backup import restore as restoring
        from quire_bookie.backup.reading import choose_backup
        from quire_bookie.env.clock import SystemClock

        place = place_of(from_, endpoint)
        clock = SystemClock()
        manifest = await choose_backup(place, backup)
        store = await store_of(cluster)
        try:
            seen = await restoring.inspect_store(store, manifest)
            found = await restoring.inspect_backup(place, manifest)
            if not cluster.as_json:
                say(_plan(manifest, seen, found, clock.now_ms()))
            if yes:
                await restoring.restore(store, place, manifest, seen, found, clock=clock)
        finally:
            await store.close()
        took_ms = clock.now_ms()
        done = "restored" if yes else "nothing was changed; do it with --yes"
        row = row_of(manifest) | {"restored": yes, "registered": list(seen.registered), "atMs": took_ms}
        tell(cluster.as_json, row, done if not yes else f"backup {manifest.name} is {done}. {_NEXT}")


_NEXT = (
    "Now start the bookies, but no broker, and run `quire metadata cookies list`, `quire metadata orphans list` and, "
    "when all is decided, `quire metadata release-hold`."
)


def _plan(manifest: "Manifest", seen: "StoreState", found: "Found", now_ms: int) -> str:
    created = datetime.fromtimestamp(manifest.created_ms / 1000, UTC).isoformat(timespec="seconds")
    hours = (now_ms - manifest.created_ms) / 3_600_000
    lines = [
        f"backup {manifest.name} of {created} ({hours:.1f} hours old), by Quire {manifest.quire_version}",
        f"  cluster {manifest.instance_id}: {manifest.nodes} nodes, {manifest.ledgers} ledgers; checked",
        f"the store {_holds(seen)}",
        *([f"  bookies that run on it already: {', '.join(seen.registered)}"] if seen.registered else []),
        "the restore",
        "  1. puts garbage collection of all bookies on hold, and switches auto-recovery off",
        f"  2. lets new ledgers take ids that no bookie can hold (from {found.high + 2} x 2^32 on)",
        "  3. writes the nodes of the backup, and compares them with it",
        "  4. makes the cluster visible. Brokers wait until `quire metadata release-hold`",
        "stop every broker and auto-recovery before: what they wrote after the backup is not in it",
    ]
    return "\n".join(lines)


def _holds(seen: "StoreState") -> str:
    if seen.begun is not None:
        return "holds the beginning of this restore"
    if seen.instance_version >= 0:
        return "holds only what the start of a process writes into an empty one; its cluster id is replaced"
    return "is empty"


@contextlib.asynccontextmanager
async def _reviewing(cluster: Cluster) -> AsyncIterator[Reviewing]:
    from quire_bookie.backup.holdings import BookieQuestions
    from quire_bookie.backup.settling import under_review
    from quire_bookie.cli.client_security_settings import client_security_settings

    async with contextlib.AsyncExitStack() as undo:
        if cluster.data is not None:
            # Without a review nothing holds back garbage collection: find out before the bookies start.
            async with opened_store(cluster) as stopped:
                await under_review(stopped)
        store = await undo.enter_async_context(opened_store(cluster, bookies=True))
        restoration = await under_review(store)
        access = await undo.enter_async_context(access_to(cluster, store))
        context = _http_context(client_security_settings(cluster.settings))
        questions = await undo.enter_async_context(BookieQuestions(access, context))
        yield Reviewing(access, questions, restoration)


@contextlib.asynccontextmanager
async def access_to(cluster: Cluster, store: "MetadataStore") -> "AsyncIterator[ClusterAccess]":
    """The cluster's bookies, by its metadata. The caller closes `store`."""
    from quire_bookie.cli.client_security_settings import client_security_settings
    from quire_bookie.cli.client_settings import client_settings
    from quire_bookie.cli.recovery_settings import recovery_settings
    from quire_bookie.env.chance import SystemChance
    from quire_bookie.env.clock import SystemClock
    from quire_bookie.recovery.access import ClusterAccess

    settings = cluster.settings
    access = await ClusterAccess.open(
        *(store, recovery_settings(settings), client_settings(settings, client_security_settings(settings))),
        clock=SystemClock(),
        chance=SystemChance(),
    )
    try:
        yield access
    finally:
        await access.close()


def _http_context(security: "ClientSecuritySettings") -> "SSLContext":
    """For HTTP ports with TLS: whom the settings trust as bookies, else as for every command that speaks HTTP."""
    from quire_bookie.cli.client_access import client_access
    from quire_bookie.env.tls import client_context

    if security.tls is None:
        return client_access().context()
    return client_context(security.tls, check_host_name=security.check_host_name)


def _add_orphans_list(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app, "list")
    async def list_(
        cluster: Cluster,
        gone: Annotated[bool, typer.Option("--gone", help="Also ledgers that no bookie holds any more.")] = False,
    ) -> None:
        """Compare the metadata with what the bookies hold. Reads only."""

        from quire_bookie.backup.review import Kind, review
        from quire_bookie.metadata.restoration import given_up

        async with _reviewing(cluster) as now:
            holdings = await now.questions.holdings()
            found = await review(now.access.nodes, now.questions, holdings)
            dropped = await given_up(now.access.metadata)
            rows = []
            for one in found.differences:
                if one.kind is Kind.GONE and not gone:
                    continue
                row: dict[str, Any] = {
                    "ledger": one.ledger,
                    "kind": one.kind.value,
                    "lastEntry": one.last,
                    "why": one.why,
                }
                row |= await _size_and_time(now, one.bookies, one.ledger) | {"bookies": list(one.bookies)}
                rows.append(row | {"decided": "drop" if one.ledger in dropped else None})
        unsure = {str(ledger): why for ledger, why in found.unsure.items()}
        if cluster.as_json:
            silent = dict(holdings.silent)
            tell(True, {"differences": rows, "unsure": unsure, "silent": silent, "compared": found.compared}, "")
            return
        if rows:
            names = ("ledger", "kind", "lastEntry", "bytes", "lastWrite", "bookies", "decided", "why")
            cells = [tuple(", ".join(row[name]) if name == "bookies" else row[name] for name in names) for row in rows]
            print_table(("ledger", "kind", "last entry", "bytes", "last write", "held by", "decided", "why"), cells)
        for why in (*holdings.silent.values(), *unsure.values()):
            say(f"not complete: {why}", err=True)
        say(f"{found.compared} ledgers of the metadata compared, {len(rows)} to decide about", err=True)


async def _size_and_time(now: Reviewing, bookies: tuple[str, ...], ledger: int) -> dict[str, Any]:
    """Payload bytes of a ledger up to the last entry that any bookie holds, and when that was written at the latest."""
    from quire_bookie.errors import BookieUnavailableError
    from quire_bookie.model import BookieId, LedgerId

    lengths, times = [], []
    for bookie in bookies:
        with contextlib.suppress(BookieUnavailableError):
            said = await now.questions.details(BookieId(bookie), LedgerId(ledger))
            lengths.append(said["length"] or 0)
            times.append(said["lastWriteMs"] or 0)
    last_ms = max(times, default=0)
    written = datetime.fromtimestamp(last_ms / 1000, UTC).isoformat(timespec="seconds") if last_ms else None
    return {"bytes": max(lengths, default=None), "lastWrite": written}


def _add_adopt(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app)
    async def adopt(
        cluster: Cluster,
        ledgers: Annotated[list[int] | None, typer.Argument(metavar="LEDGER...", min=0, help="Ids of ledgers.")] = None,
        all_: Annotated[
            bool, typer.Option("--all", help="Every one that `orphans list` shows and nobody dropped.")
        ] = False,
        password_file: Annotated[
            Path | None, typer.Option(help="File with the ledgers' password. [that of --data, else none]")
        ] = None,
        digest: Annotated[Digest | None, typer.Option(help="Instead of finding it out.")] = None,
        accept_missing: Annotated[
            bool, typer.Option("--accept-missing", help="Entries that no bookie holds are given up.")
        ] = False,
        without: Without = None,
    ) -> None:
        """Rebuild the metadata of ledgers from what the bookies hold of them, and close each where that ends."""

        from quire_bookie.backup.adoption import adopt_with_any, gather_evidence
        from quire_bookie.backup.format import BackupError
        from quire_bookie.client.ledger_description import describe
        from quire_bookie.errors import LedgerError
        from quire_bookie.model import BookieId, DigestType, LedgerId

        if bool(ledgers) == all_:
            raise ConfigError("name the ledgers to adopt, or give --all")
        passwords = _passwords(password_file, cluster.data)
        rows, refused = [], {}
        async with _reviewing(cluster) as now:
            known = await now.questions.known()
            lost = [BookieId(one) for one in without or []]
            for ledger in map(LedgerId, await _undecided(now) if all_ else ledgers or []):
                try:
                    evidence = await gather_evidence(now.access, now.questions, ledger, lost, known)
                    closed = await adopt_with_any(
                        *(now.access, ledger, evidence, now.restoration.value.backup, passwords),
                        digest=None if digest is None else DigestType[digest.name],
                        accept_missing=accept_missing,
                    )
                except (BackupError, LedgerError) as error:
                    # One that needs another password or a bookie that is away is no reason to leave the others.
                    refused[int(ledger)] = str(error)
                    continue
                missing = sum(last - first + 1 for first, last in evidence.absent)
                rows.append(describe(ledger, closed) | {"missingEntries": missing})
                if not cluster.as_json:
                    say(_adopted(rows[-1]))
        if cluster.as_json and not refused:
            tell(True, {"adopted": rows}, "")
        if refused:
            raise BackupError(_not_adopted(len(rows), refused))


def _not_adopted(done: int, refused: dict[int, str]) -> str:
    """Which ledgers could not be adopted, with the reason of each; the others are back."""
    lines = [f"ledger {ledger}: {why}" for ledger, why in refused.items()]
    more = f"; and {len(lines) - 10} more" if len(lines) > 10 else ""
    return f"{done} adopted, {len(refused)} not: " + "; ".join(lines[:10]) + more


def _adopted(row: dict[str, Any]) -> str:
    bookies = ", ".join(row["segments"][0]["ensemble"])
    text = f"ledger {row['ledgerId']} is back: entries 0 to {row['lastEntry']}, {row['length']:,} bytes, on {bookies}"
    return text + (f"; {row['missingEntries']} of its entries are on no bookie" if row["missingEntries"] else "")


async def _undecided(now: Reviewing, *, quarantined: bool = False) -> list[int]:
    """Ledgers that can be adopted and were not dropped; or only those in quarantine at every bookie that holds them."""
    from quire_bookie.backup.review import Kind, review
    from quire_bookie.metadata.restoration import given_up

    found = await review(now.access.nodes, now.questions, await now.questions.holdings())
    dropped = await given_up(now.access.metadata)
    return [
        one.ledger
        for one in found.differences
        if one.kind is not Kind.GONE and one.ledger not in dropped and (one.quarantined or not quarantined)
    ]


def _passwords(file: Path | None, data: str | None) -> list[bytes]:
    """Those to try, in order: the one that was given, else that of a standalone's folder and the empty one."""
    if file is not None:
        return [_password(file)]
    kept = None if data is None else Path(data) / LEDGER_PASSWORD_FILE
    return [*([] if kept is None or not kept.exists() else [_password(kept)]), b""]


def _password(file: Path) -> bytes:
    try:
        return file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"--password-file {file} cannot be read: {error.strerror}") from error


def _add_drop(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app)
    async def drop(
        cluster: Cluster,
        ledger: Ledger = None,
        in_quarantine: Annotated[
            bool, typer.Option("--in-quarantine", help="Every orphan that is in quarantine at all that hold it.")
        ] = False,
    ) -> None:
        """Say that what bookies hold of a ledger beyond the metadata may go. Nothing is deleted before release-hold."""

        from quire_bookie.metadata.restoration import give_up
        from quire_bookie.model import LedgerId

        if (ledger is None) != in_quarantine:
            raise ConfigError("drop: name a ledger, or give --in-quarantine")
        async with _reviewing(cluster) as now:
            dropped = [ledger] if ledger is not None else await _undecided(now, quarantined=True)
            for one in dropped:
                await give_up(now.access.metadata, LedgerId(one))
        if ledger is None:
            tell(cluster.as_json, {"ledgers": dropped, "decided": "drop"}, f"ledgers that may go: {len(dropped)}")
            return
        tell(
            cluster.as_json, {"ledger": ledger, "decided": "drop"}, f"ledger {ledger} may go once the hold is released"
        )


def _add_cookies(commands: Commands, app: typer.Typer) -> None:
    cookies = new_app("Bookies that the restored metadata does not know, or knows as they were.")
    app.add_typer(cookies, name="cookies")

    @on_cluster(commands, cookies, "list")
    async def list_(
        cluster: Cluster,
    ) -> None:
        """List running bookies without a cookie, and cookies without a running bookie."""

        from quire_bookie.metadata.cookies import Cookies

        async with _reviewing(cluster) as now:
            known = set(await Cookies(now.access.metadata).bookies())
            running = now.access.registered
        rows = [{"bookie": one, "state": "runs without a cookie: accept it"} for one in sorted(running - known)]
        rows += [
            {"bookie": one, "state": "does not run: start it; it may have been decommissioned after the backup"}
            for one in sorted(known - running)
        ]
        rows += [{"bookie": one, "state": "known"} for one in sorted(known & running)]
        if cluster.as_json:
            tell(True, {"bookies": rows}, "")
        else:
            print_table(("bookie", "state"), [(row["bookie"], row["state"]) for row in rows])

    @on_cluster(commands, cookies)
    async def accept(
        cluster: Cluster,
        bookie: Annotated[str, typer.Argument(help="Id of the bookie, as its log names it.")],
    ) -> None:
        """Say that a bookie belongs to the cluster with the storage that it has."""

        from quire_bookie.metadata.cookies import Cookies
        from quire_bookie.metadata.restoration import let_return
        from quire_bookie.model import BookieId

        who = BookieId(bookie)
        async with _reviewing(cluster) as now:
            cookies = Cookies(now.access.metadata)
            if who in now.access.registered and await cookies.read(who) is None:
                await cookies.create(await now.questions.cookie(who))
                said = "its cookie is back"
            else:
                await let_return(now.access.metadata, who)
                said = "its next start brings its cookie back; one that waits for it is restarted"
        tell(cluster.as_json, {"bookie": bookie, "accepted": True}, f"bookie {bookie} is accepted: {said}")


def _add_release(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app, "release-hold")
    async def release_hold(
        cluster: Cluster,
        without: Without = None,
        delete_undecided: Annotated[
            bool, typer.Option("--delete-undecided", help="What was not decided may go.")
        ] = False,
    ) -> None:
        """Settle ledger ids, then let garbage collection, auto-recovery and brokers go on."""

        from quire_bookie.backup.format import BackupError
        from quire_bookie.backup.review import review
        from quire_bookie.backup.settling import release, settle_ids, undecided
        from quire_bookie.metadata.restoration import given_up
        from quire_bookie.model import BookieId

        async with _reviewing(cluster) as now:
            store = now.access.metadata
            holdings = await now.questions.holdings()
            found = await review(now.access.nodes, now.questions, holdings)
            lost = [BookieId(one) for one in without or []]
            open_ = undecided(found, holdings, await given_up(store), lost)
            if open_.unknown or (open_.ledgers and not delete_undecided):
                lines = open_.lines
                more = f"; and {len(lines) - 10} more" if len(lines) > 10 else ""
                raise BackupError("the hold stays: " + "; ".join(lines[:10]) + more)
            ids = await settle_ids(store, now.restoration.value, holdings, complete=not holdings.silent)
            await release(store, now.restoration)
        kind = "long ids" if ids.long else "short ids"
        row = {"released": True, "longIds": ids.long, "idsAbove": ids.above, "puts": ids.puts}
        tell(
            cluster.as_json, row, f"the hold is released; new ledgers take {kind} above {ids.above}. Start the brokers"
        )
