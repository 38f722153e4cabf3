"""`quire metadata restore`, `orphans`, `cookies` and `release-hold`: restore the metadata of a backup step by step.

Owns arguments, tables and confirmations; the steps are in `quire_bookie.backup`.
"""

import contextlib
from collections.abc import AsyncIterator
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
    object_store_of,
    on_cluster,
    opened_store,
    row_of,
    store_of,
    tell,
)
from quire_bookie.cli.output import say
from quire_bookie.cli.tables import print_table
from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from ssl import SSLContext

    from quire_bookie.backup.format import Manifest
    from quire_bookie.backup.holdings import BookieQuestions
    from quire_bookie.backup.restore import Found, StoreState
    from quire_bookie.metadata.restoration import Restoration
    from quire_bookie.metadata.store import MetadataStore, Versioned
    from quire_bookie.recovery.access import ClusterAccess
    from quire_bookie.settings.tls import ClientSecuritySettings

Without = Annotated[
    list[str] | None, typer.Option("--without", help="A bookie that is lost permanently. May be repeated.")
]
Ledger = Annotated[int | None, typer.Argument(min=0, help="Id of the ledger.")]


class Digest(StrEnum):
    """The digest types, by BookKeeper's names."""

    CRC32C = "CRC32C"
    CRC32 = "CRC32"
    HMAC = "HMAC"
    DUMMY = "DUMMY"


@dataclass(slots=True)
class Reviewing:
    """Holds the objects that the commands of a review share."""

    access: "ClusterAccess"
    questions: "BookieQuestions"
    restoration: "Versioned[Restoration]"


def register(commands: Commands, app: typer.Typer) -> None:
    """Add the commands to `quire metadata`."""
    _add_restore(commands, app)
    orphans = new_app("List, adopt or drop ledgers that bookies hold and the restored metadata does not know.")
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
        yes: Annotated[bool, typer.Option("--yes", help="Restore. Without it: only show what would be done.")] = False,
        endpoint: Endpoint = None,
    ) -> None:
        """Write a backup into a new, empty etcd, with a hold that protects newer data on the bookies."""

        from quire_bookie.backup import restore as restoring
        from quire_bookie.backup.reading import choose_backup
        from quire_bookie.env.clock import SystemClock

        objects = object_store_of(from_, endpoint)
        clock = SystemClock()
        manifest = await choose_backup(objects, backup)
        store = await store_of(cluster)
        try:
            seen = await restoring.inspect_store(store, manifest)
            found = await restoring.inspect_backup(objects, manifest)
            if not cluster.as_json:
                say(_plan(manifest, seen, found, clock.now_ms()))
            if yes:
                await restoring.restore(store, objects, manifest, seen, found, clock=clock)
        finally:
            await store.close()
        took_ms = clock.now_ms()
        done = "restored" if yes else "nothing was changed; give --yes to apply it"
        row = row_of(manifest) | {"restored": yes, "registered": list(seen.registered), "atMs": took_ms}
        tell(cluster.as_json, row, done if not yes else f"backup {manifest.name} is {done}. {_NEXT}")


_NEXT = (
    "Now start the bookies, but no broker, and run `quire metadata cookies list`, `quire metadata orphans list` and, "
    "when every ledger is decided, `quire metadata release-hold`."
)


def _plan(manifest: "Manifest", seen: "StoreState", found: "Found", now_ms: int) -> str:
    created = datetime.fromtimestamp(manifest.created_ms / 1000, UTC).isoformat(timespec="seconds")
    hours = (now_ms - manifest.created_ms) / 3_600_000
    lines = [
        f"backup {manifest.name} of {created} ({hours:.1f} hours old), by Quire {manifest.quire_version}",
        f"  cluster {manifest.instance_id}: {manifest.nodes} nodes, {manifest.ledgers} ledgers; checked",
        f"the store {_holds(seen)}",
        *([f"  bookies already running on it: {', '.join(seen.registered)}"] if seen.registered else []),
        "the restore",
        "  1. puts garbage collection of all bookies on hold, and switches auto-recovery off",
        f"  2. lets new ledgers take ids that no bookie can hold (from {found.high + 2} x 2^32 on)",
        "  3. writes the nodes of the backup, and compares them with it",
        "  4. makes the cluster visible. Brokers wait until `quire metadata release-hold`",
        "first stop every broker and auto-recovery: the backup does not contain their later writes",
    ]
    return "\n".join(lines)


def _holds(seen: "StoreState") -> str:
    if seen.begun is not None:
        return "contains the beginning of this restore"
    if seen.instance_version >= 0:
        return "contains only the nodes that a starting process creates; its cluster id is replaced"
    return "is empty"


@contextlib.asynccontextmanager
async def reviewing(cluster: Cluster) -> AsyncIterator[Reviewing]:
    """Open the cluster's metadata and access to its bookies, while a restore is under review. BackupError otherwise."""
    from quire_bookie.backup.holdings import BookieQuestions
    from quire_bookie.backup.settling import under_review
    from quire_bookie.cli.client_security_settings import client_security_settings

    async with contextlib.AsyncExitStack() as undo:
        if cluster.data is not None:
            # Without a review, garbage collection is not on hold: check before the bookies start.
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
    """Open access to the cluster's bookies that its metadata lists. The caller closes `store`."""
    from quire_bookie.cli.client_security_settings import client_security_settings
    from quire_bookie.env.chance import SystemChance
    from quire_bookie.env.clock import SystemClock
    from quire_bookie.recovery.access import ClusterAccess
    from quire_bookie.settings.client import ClientSettings
    from quire_bookie.settings.recovery import RecoverySettings

    settings = cluster.settings
    access = await ClusterAccess.open(
        store,
        settings.part(RecoverySettings),
        settings.part(ClientSettings, security=client_security_settings(settings)),
        clock=SystemClock(),
        chance=SystemChance(),
    )
    try:
        yield access
    finally:
        await access.close()


def _http_context(security: "ClientSecuritySettings") -> "SSLContext":
    """Return the context for HTTP ports with TLS: the configured trust in bookies, else that of all HTTP commands."""
    from quire_bookie.cli.client_access import client_access
    from quire_bookie.env.tls import client_context

    if security.tls is None:
        return client_access().context()
    return client_context(security.tls, check_host_name=security.check_host_name)


def _add_orphans_list(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app, "list")
    async def list_(
        cluster: Cluster,
        gone: Annotated[bool, typer.Option("--gone", help="Also list ledgers that no bookie holds.")] = False,
    ) -> None:
        """Compare the metadata with the ledgers that the bookies hold. Reads only."""

        from quire_bookie.backup.review import Kind, review
        from quire_bookie.metadata.restoration import given_up

        async with reviewing(cluster) as now:
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
            say(f"incomplete: {why}", err=True)
        say(f"{found.compared} ledgers of the metadata compared, {len(rows)} to decide", err=True)


async def _size_and_time(now: Reviewing, bookies: tuple[str, ...], ledger: int) -> dict[str, Any]:
    """Return the payload bytes up to the last entry that any bookie holds, and the latest time of a write."""
    from quire_bookie.errors import BookieUnavailableError
    from quire_bookie.model import BookieId, LedgerId

    lengths, times = [], []
    for bookie in bookies:
        with contextlib.suppress(BookieUnavailableError):
            report = await now.questions.details(BookieId(bookie), LedgerId(ledger))
            lengths.append(report["length"] or 0)
            times.append(report["lastWriteMs"] or 0)
    last_ms = max(times, default=0)
    written = datetime.fromtimestamp(last_ms / 1000, UTC).isoformat(timespec="seconds") if last_ms else None
    return {"bytes": max(lengths, default=None), "lastWrite": written}


def _add_adopt(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app)
    async def adopt(
        cluster: Cluster,
        ledgers: Annotated[list[int] | None, typer.Argument(metavar="LEDGER...", min=0, help="Ids of ledgers.")] = None,
        all_: Annotated[
            bool, typer.Option("--all", help="Adopt all that `orphans list` shows and that are not dropped.")
        ] = False,
        password_file: Annotated[
            Path | None, typer.Option(help="File with the ledgers' password. [that of --data, else none]")
        ] = None,
        digest: Annotated[Digest | None, typer.Option(help="Digest type of the ledgers. [detected]")] = None,
        accept_missing: Annotated[
            bool, typer.Option("--accept-missing", help="Accept the loss of entries that no bookie holds.")
        ] = False,
        without: Without = None,
    ) -> None:
        """Rebuild the metadata of ledgers from the copies on bookies, and close each after its last entry."""

        from quire_bookie.backup.adoption import adopt_with_any, gather_evidence
        from quire_bookie.backup.format import BackupError
        from quire_bookie.client.ledger_description import describe
        from quire_bookie.errors import LedgerError
        from quire_bookie.model import BookieId, DigestType, LedgerId

        if bool(ledgers) == all_:
            raise ConfigError("adopt: give ids of ledgers, or --all")
        passwords = _passwords(password_file, cluster.data)
        rows, refused = [], {}
        async with reviewing(cluster) as now:
            known = await now.questions.known()
            lost = [BookieId(one) for one in without or []]
            for ledger in map(LedgerId, await _undecided(now) if all_ else ledgers or []):
                try:
                    evidence = await gather_evidence(now.access, now.questions, ledger, lost, known)
                    closed = await adopt_with_any(
                        now.access,
                        ledger,
                        evidence,
                        now.restoration.value.backup,
                        passwords,
                        digest=None if digest is None else DigestType[digest.name],
                        accept_missing=accept_missing,
                    )
                except (BackupError, LedgerError) as error:
                    # A ledger that needs another password or a missing bookie must not stop the adoption of the others.
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
    """Report the ledgers that could not be adopted, with the reason of each; the others are adopted."""
    lines = [f"ledger {ledger}: {why}" for ledger, why in refused.items()]
    more = f"; and {len(lines) - 10} more" if len(lines) > 10 else ""
    return f"{done} adopted, {len(refused)} not: " + "; ".join(lines[:10]) + more


def _adopted(row: dict[str, Any]) -> str:
    bookies = ", ".join(row["segments"][0]["ensemble"])
    text = f"ledger {row['ledgerId']} is adopted: entries 0 to {row['lastEntry']}, {row['length']:,} bytes, "
    text += f"on {bookies}"
    return text + (f"; {row['missingEntries']} of its entries are on no bookie" if row["missingEntries"] else "")


async def _undecided(now: Reviewing, *, quarantined: bool = False) -> list[int]:
    """Return ledgers that can be adopted and are not dropped; or only those in quarantine on all their bookies."""
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
    """Return the passwords to try, in order: the given one, else that of a standalone's folder and the empty one."""
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
            bool, typer.Option("--in-quarantine", help="Drop every orphan in quarantine on all its bookies.")
        ] = False,
    ) -> None:
        """Allow deletion of a ledger's entries that the metadata does not know. Deletes nothing before release-hold."""

        from quire_bookie.metadata.restoration import give_up
        from quire_bookie.model import LedgerId

        if (ledger is None) != in_quarantine:
            raise ConfigError("drop: give the id of a ledger, or give --in-quarantine")
        async with reviewing(cluster) as now:
            dropped = [ledger] if ledger is not None else await _undecided(now, quarantined=True)
            for one in dropped:
                await give_up(now.access.metadata, LedgerId(one))
        if ledger is None:
            tell(cluster.as_json, {"ledgers": dropped, "decided": "drop"}, f"dropped ledgers: {len(dropped)}")
            return
        tell(
            cluster.as_json, {"ledger": ledger, "decided": "drop"}, f"ledger {ledger} may be deleted after release-hold"
        )


def _add_cookies(commands: Commands, app: typer.Typer) -> None:
    cookies = new_app("List or accept bookies whose cookies are missing from the restored metadata or outdated.")
    app.add_typer(cookies, name="cookies")

    @on_cluster(commands, cookies, "list")
    async def list_(
        cluster: Cluster,
    ) -> None:
        """List running bookies without a cookie, and cookies without a running bookie."""

        from quire_bookie.metadata.cookies import Cookies

        async with reviewing(cluster) as now:
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
        bookie: Annotated[str, typer.Argument(help="Id of the bookie, as in its log.")],
    ) -> None:
        """Accept a bookie as a member of the cluster, with its present storage."""

        from quire_bookie.metadata.cookies import Cookies
        from quire_bookie.metadata.restoration import let_return
        from quire_bookie.model import BookieId

        who = BookieId(bookie)
        async with reviewing(cluster) as now:
            cookies = Cookies(now.access.metadata)
            if who in now.access.registered and await cookies.read(who) is None:
                await cookies.create(await now.questions.cookie(who))
                outcome = "its cookie is restored"
            else:
                await let_return(now.access.metadata, who)
                outcome = "its next start restores its cookie; restart the bookie if it is waiting"
        tell(cluster.as_json, {"bookie": bookie, "accepted": True}, f"bookie {bookie} is accepted: {outcome}")


def _add_release(commands: Commands, app: typer.Typer) -> None:
    @on_cluster(commands, app, "release-hold")
    async def release_hold(
        cluster: Cluster,
        without: Without = None,
        delete_undecided: Annotated[
            bool, typer.Option("--delete-undecided", help="Delete ledgers that are neither adopted nor dropped.")
        ] = False,
    ) -> None:
        """Settle ledger ids, then resume garbage collection, auto-recovery and brokers."""

        from quire_bookie.backup.format import BackupError
        from quire_bookie.backup.review import review
        from quire_bookie.backup.settling import release, settle_ids, undecided
        from quire_bookie.metadata.restoration import given_up
        from quire_bookie.model import BookieId

        async with reviewing(cluster) as now:
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
