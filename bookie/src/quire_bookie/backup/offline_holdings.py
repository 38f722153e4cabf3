"""Finds the ledgers that the stopped bookies of a standalone hold or remember as deleted, by their indexes and
journals, and the identities of these bookies, by the cookies in their folders.

Only reads. A folder that cannot be read is reported, never treated as empty.
"""

from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.errors import QuireError, StartupError
from quire_bookie.journal.inspect import inspect_journal
from quire_bookie.metadata.cookies import Cookie
from quire_bookie.model import LedgerId
from quire_bookie.server.settings import BookieSettings
from quire_bookie.server.start.storage_folders import StorageFolders, inspect
from quire_bookie.storage.index.index_rocksdb import RocksIndexStore
from quire_bookie.storage.inspect import inspect_ledgers


@dataclass(slots=True)
class OfflineHoldings:
    """`live`: the bookies that hold each ledger. `unread`: what could not be read, one line each."""

    live: dict[LedgerId, list[str]] = field(default_factory=dict)
    deleted: set[LedgerId] = field(default_factory=set)
    unread: list[str] = field(default_factory=list)

    @property
    def seen(self) -> set[LedgerId]:
        """Every ledger id that a bookie holds or remembers."""
        return self.deleted.union(self.live)


async def inspect_bookies(disk: Disk, bookies: dict[str, BookieSettings]) -> OfflineHoldings:
    """Read the folders of each bookie, given by name. No process may use their folders meanwhile."""
    found = OfflineHoldings()
    for name, settings in sorted(bookies.items()):
        try:
            await _index(settings, name, found)
        except (QuireError, OSError) as error:
            found.unread.append(f"the index of {name} cannot be read: {error}")
        for directory in settings.journal_paths:
            try:
                await _journal(disk, directory, name, found)
            except (QuireError, OSError) as error:
                found.unread.append(f"the journal of {name} cannot be read: {error}")
    return found


async def cookies_of(disk: Disk, bookies: dict[str, BookieSettings]) -> dict[str, Cookie]:
    """Return the cookie of each bookie by name. StartupError: one lacks a cookie, or it cannot be read.

    The cookie that lists the most folders is used, as when a bookie starts.
    """
    cookies: dict[str, Cookie] = {}
    for name, settings in sorted(bookies.items()):
        folders = StorageFolders(settings.journal_paths, settings.ledger_paths, settings.index_dir)
        try:
            found = [folder.cookie for folder in await inspect(disk, folders) if folder.cookie is not None]
        except OSError as error:
            raise StartupError(f"the folders of {name} cannot be read: {error}") from error
        if not found:
            raise StartupError(f"{name} has no cookie (current/VERSION) in {', '.join(folders.places())}")
        cookies[name] = max(found, key=lambda cookie: len(cookie.journal_dirs) + len(cookie.ledger_dirs))
    return cookies


async def _index(settings: BookieSettings, name: str, found: OfflineHoldings) -> None:
    index = await RocksIndexStore.open(settings.index_path, cache_bytes=settings.index_cache_bytes, read_only=True)
    try:
        for info, _ in await inspect_ledgers(index):
            if info.deleted:
                found.deleted.add(info.ledger_id)
            else:
                found.live.setdefault(info.ledger_id, []).append(name)
    finally:
        await index.close()


async def _journal(disk: Disk, directory: str, name: str, found: OfflineHoldings) -> None:
    _, files = await inspect_journal(disk, directory)
    for file in files:
        if file.damaged:
            found.unread.append(f"the journal of {name} is damaged: {file.path}: {file.what}")
        for ledger in file.ledgers if file.live else ():
            holders = found.live.setdefault(ledger, [])
            if ledger not in found.deleted and name not in holders:
                holders.append(name)
            if not holders:
                del found.live[ledger]
