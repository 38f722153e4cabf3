"""Determines the bookie id of a storage: stamps empty volumes with a new id, recognises stamped ones, refuses others.

A bookie's id belongs to its storage. An empty bookie that came up under an id that ledgers name would answer *no such
entry* for acknowledged entries, and recovery would truncate those ledgers. Therefore an id is generated only when every
volume is empty. A missing or emptied volume beside surviving ones is refused, or, if the administrator accepts the
loss, the bookie comes up in limbo (`StorageIdentity.lost`). Folder names in the cookie have the prefix `quire1:`, the
version of the formats on disk; files of a Java bookie, whose cookie has no such prefix, are neither read nor written.

The cookie in the metadata store defines which folders are in use. Orders that no crash may break:

* a new bookie: the folders are stamped first, the store last. Stamped folders without data and without a cookie in the
  store belong to no ledger yet: the next start completes the stamping;
* an expansion: the new folders are stamped, then the store's cookie names them, then the cookies of the old ones do. A
  folder that the store's cookie does not name is not in use; a folder with an older cookie gets the store's;
* a lost folder is stamped as `lost` and stays so until limbo is durable.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import field, replace

from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import DirectoryLock, Disk
from quire_bookie.errors import BadVersionError, StartupError
from quire_bookie.metadata.cookies import Cookie, Cookies
from quire_bookie.metadata.store import MetadataStore, Versioned
from quire_bookie.model import BookieId
from quire_bookie.server.start.returning import returned
from quire_bookie.server.start.storage_folders import (
    CURRENT,
    FORMAT_PREFIX,
    FolderState,
    FoundFolder,
    StorageFolders,
    inspect,
    stamp,
    write_cookie,
    write_state,
)

_ID_SUFFIX_BYTES = 4


@dataclass(slots=True)
class StorageIdentity:
    """Identifies the bookie of a storage and holds its folder locks until `release`."""

    bookie: BookieId
    instance_id: str
    is_new: bool
    locks: list[DirectoryLock] = field(default_factory=list)
    lost: tuple[str, ...] = ()
    """Folders whose content was lost and that were accepted empty: the bookie must come up in limbo."""
    epoch: int = 0
    unused: bool = False
    """None of its folders was ever in use: the bookie has not answered any request yet."""
    unsettled: tuple[str, ...] = ()
    """Folders whose STATE does not match this epoch; lost ones come last."""

    async def settle(self, disk: Disk) -> None:
        """Mark every folder as used. Called when limbo is durable, before any acknowledgement."""
        for path in self.unsettled:
            await write_state(disk, path, FolderState.USED, self.epoch)
        self.unsettled = ()

    def release(self) -> None:
        """Release the folder locks. Calling it again does nothing."""
        while self.locks:
            self.locks.pop().release()


@dataclass(frozen=True, slots=True)
class ClaimOptions:
    """What the administrator allowed for this start."""

    allow_expansion: bool = False
    """Add empty folders listed after the known ones to the bookie."""
    accept_lost: bool = False
    """Accept emptied folders; the bookie comes up in limbo."""
    bookie: BookieId | None = None
    """Id of a new bookie; None: a random one."""
    must_be_id: bool = False
    """Refuse storage that belongs to a bookie with an id other than `bookie`."""


async def claim_storage(
    disk: Disk,
    metadata: MetadataStore,
    folders: StorageFolders,
    *,
    instance_id: str,
    host_name: str,
    chance: Chance,
    options: ClaimOptions = ClaimOptions(),
) -> StorageIdentity:
    """Recognise or stamp the folders, lock them, and ensure that the metadata store has the cookie.

    StartupError, one line for the administrator, if folders cannot be used or belong to another bookie or system.
    MetadataUnavailableError and MetadataUnknownError: try again; folders stamped meanwhile are then recognised.
    """
    try:
        # Inspect before creating anything: a foreign folder stays unchanged.
        await inspect(disk, folders)
        locks = await _lock(disk, folders)
    except OSError as error:
        raise StartupError(_os_error_line(error, folders)) from error
    identity = StorageIdentity(BookieId(""), instance_id, False, locks)
    with contextlib.ExitStack() as undo:
        undo.callback(identity.release)
        try:
            found = await inspect(disk, folders)
            if not any(folder.cookie for folder in found):
                if options.bookie is not None:
                    await _check_unknown(metadata, options.bookie, folders)
                identity.bookie = options.bookie or draw_bookie_id(host_name, chance)
                identity.is_new = True
                await _stamp_new(disk, metadata, folders, _new_cookie(identity.bookie, folders, instance_id))
            else:
                identity.bookie = await _recognise(disk, metadata, folders, found, instance_id, options)
                _check_id(identity.bookie, folders, options)
            found = await inspect(disk, folders)
        except OSError as error:
            raise StartupError(_os_error_line(error, folders)) from error
        identity.lost = tuple(folder.path for folder in found if folder.state is FolderState.LOST)
        identity.unused = all(folder.state is FolderState.NEW for folder in found)
        identity.epoch = max(folder.epoch for folder in found)
        identity.unsettled = tuple(
            folder.path
            for folder in sorted(found, key=lambda folder: folder.state is FolderState.LOST)
            if folder.state is not FolderState.USED or folder.epoch != identity.epoch
        )
        undo.pop_all()
    return identity


async def _check_unknown(metadata: MetadataStore, bookie: BookieId, folders: StorageFolders) -> None:
    """Refuse empty folders for a bookie of the cluster: ledgers may name it for entries that the folders lack."""
    if await Cookies(metadata).read(bookie) is not None:
        raise StartupError(
            f"bookie {bookie} is part of the cluster, but its folders here are empty ({', '.join(folders.places())}); "
            f"mount its volumes. If they are lost: run `quire cluster decommission {bookie}`, which copies its entries "
            "from other bookies, and start again; or start a new bookie at once, with bookieIdScheme=storage or with "
            "another bookieId"
        )


def _check_id(bookie: BookieId, folders: StorageFolders, options: ClaimOptions) -> None:
    if options.must_be_id and bookie != options.bookie:
        raise StartupError(
            f"bookieId is {options.bookie}, but the folders {', '.join(folders.places())} belong to bookie {bookie}; "
            "configure other folders, or remove bookieId, as an id belongs to its storage"
        )


async def _lock(disk: Disk, folders: StorageFolders) -> list[DirectoryLock]:
    locks: list[DirectoryLock] = []
    with contextlib.ExitStack() as undo:
        for path in folders.places():
            await disk.make_dirs(f"{path}/{CURRENT}")
            try:
                lock = disk.lock_dir(f"{path}/{CURRENT}")
            except BlockingIOError as error:
                raise StartupError(f"the folder {path} is in use by another process; stop it first") from error
            undo.callback(lock.release)
            locks.append(lock)
        undo.pop_all()
    return locks


def draw_bookie_id(host_name: str, chance: Chance) -> BookieId:
    """Generate `<host name>-<8 hex>`; characters that an id must not have become `-`."""
    return BookieId(f"{id_prefix(host_name)}{chance.token(_ID_SUFFIX_BYTES).hex()}")


def id_prefix(host_name: str) -> str:
    """Return the prefix of ids generated on a host."""
    return (re.sub(r"[^A-Za-z0-9._-]", "-", host_name) or "bookie") + "-"


def _prefixed(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(FORMAT_PREFIX + path for path in paths)


def _new_cookie(bookie: BookieId, folders: StorageFolders, instance_id: str) -> Cookie:
    index_dirs = None if folders.index_dir is None else _prefixed((folders.index_dir,))
    return Cookie(bookie, _prefixed(folders.journal_dirs), _prefixed(folders.ledger_dirs), instance_id, index_dirs)


async def _stamp_new(disk: Disk, metadata: MetadataStore, folders: StorageFolders, cookie: Cookie) -> None:
    for path in folders.places():
        await stamp(disk, folders, path, cookie, FolderState.NEW)
    await _publish(metadata, cookie)


async def _publish(metadata: MetadataStore, cookie: Cookie) -> None:
    try:
        await Cookies(metadata).create(cookie)
    except BadVersionError as error:
        raise StartupError(
            f"the cluster already has another bookie {cookie.bookie}; empty this bookie's folders and start again"
        ) from error


async def _recognise(
    disk: Disk,
    metadata: MetadataStore,
    folders: StorageFolders,
    found: Sequence[FoundFolder],
    instance_id: str,
    options: ClaimOptions,
) -> BookieId:
    bookie = _agreed_bookie(found, instance_id)
    cookies = [folder.cookie for folder in found if folder.cookie is not None]
    stored = await returned(metadata, cookies, await Cookies(metadata).read(bookie))
    if stored is None:
        await _complete_new(disk, metadata, folders, found)
        return bookie
    plan = plan_claim(folders, found, stored.value, options)
    # In the order of the module's docstring. After a crash between two steps the next start plans the rest.
    for path in plan.added:
        await stamp(disk, folders, path, plan.cookie, FolderState.NEW)
    for path in plan.lost:
        await stamp(disk, folders, path, plan.stored, FolderState.LOST, plan.epoch)
    for path in plan.emptied:
        await write_state(disk, path, FolderState.LOST, plan.epoch)
    if plan.cookie != plan.stored:
        await _update(metadata, plan.cookie, stored)
    for path in plan.outdated:
        await write_cookie(disk, path, plan.cookie)
    return bookie


def _agreed_bookie(found: Sequence[FoundFolder], instance_id: str) -> BookieId:
    stamped = [(folder.path, folder.cookie) for folder in found if folder.cookie is not None]
    first_path, first = stamped[0]
    for path, cookie in stamped[1:]:
        if cookie.bookie != first.bookie:
            raise StartupError(
                f"the folder {path} belongs to bookie {cookie.bookie} and {first_path} to bookie {first.bookie}; "
                "configure the folders of one bookie"
            )
    for path, cookie in stamped:
        if cookie.instance_id != instance_id:
            raise StartupError(
                f"the folder {path} belongs to bookie {cookie.bookie} of cluster {cookie.instance_id}; "
                f"this metadata store is of cluster {instance_id}; configure the metadata of that cluster, or, if "
                f"{CURRENT}/VERSION is damaged, put it back: it is the same in every folder of a bookie"
            )
    return first.bookie


async def _complete_new(
    disk: Disk, metadata: MetadataStore, folders: StorageFolders, found: Sequence[FoundFolder]
) -> None:
    """Complete the stamping of a bookie whose process died during it, before any acknowledgement."""
    cookies = {folder.path: folder.cookie for folder in found if folder.cookie is not None}
    first_path, cookie = next(iter(cookies.items()))
    if any(folder.has_data or folder.state is not FolderState.NEW for folder in found):
        raise StartupError(
            f"bookie {cookie.bookie} is no longer part of the cluster (its cookie was deleted); "
            "empty its folders to start a new bookie, or, if the metadata was restored from a backup that is older "
            f"than the bookie, run `quire metadata cookies accept {cookie.bookie}`"
        )
    other = next((path for path, each in cookies.items() if each != cookie), None)
    if other is not None:
        raise StartupError(f"the cookies in {first_path} and {other} differ; empty both folders to start a new bookie")
    if _folders_of(cookie).counts != folders.counts:
        raise StartupError(_counts_line(cookie, folders, "configure all of them"))
    _check_places(folders, found)
    for folder in found:
        if folder.cookie is None:
            await stamp(disk, folders, folder.path, cookie, FolderState.NEW)
    await _publish(metadata, cookie)


async def _update(metadata: MetadataStore, cookie: Cookie, stored: Versioned[Cookie]) -> None:
    try:
        await Cookies(metadata).update(cookie, expected=stored.version)
    except BadVersionError as error:
        raise StartupError(
            f"the cookie of bookie {cookie.bookie} in the cluster was changed during the start; start again"
        ) from error


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """The changes to folders and metadata store that are needed before the bookie may use the folders."""

    stored: Cookie
    cookie: Cookie
    """The cookie of store and folders after the changes."""
    added: tuple[str, ...]
    lost: tuple[str, ...]
    emptied: tuple[str, ...]
    outdated: tuple[str, ...]
    """Folders whose cookie still differs after the others were stamped."""
    epoch: int
    """The epoch of the folders lost now; the other folders get it when the bookie is in limbo."""


def plan_claim(
    folders: StorageFolders, found: Sequence[FoundFolder], stored: Cookie, options: ClaimOptions
) -> ClaimPlan:
    """Compare the configuration, the folders and the cookie in the store. StartupError if the start is refused."""
    stored = replace(stored, format_version=_newest_format(found))
    _check_counts(folders, stored, options)
    known = folders.first(len(stored.journal_dirs), len(stored.ledger_dirs))
    members = [folder for folder in found if folder.path in known.places()]
    for folder in members:
        if folder.cookie is not None and not _is_part(folder.cookie, stored):
            raise StartupError(
                f"the cookie of bookie {stored.bookie} in the cluster is not the one in {folder.path}; "
                "configure the folders that belong together, or, if the metadata was restored from a backup taken when"
                f" it had fewer folders, run `quire metadata cookies accept {stored.bookie}`"
            )
    lost = tuple(folder.path for folder in members if folder.cookie is None)
    emptied = tuple(folder.path for folder in members if folder.emptied)
    _check_places(folders, members)
    _check_epochs(members, stored)
    _check_lost(lost, emptied, stored, options)
    added = [folder for folder in found if folder.path not in known.places()]
    for folder in added:
        if folder.has_data or folder.state is not FolderState.NEW:
            raise StartupError(
                f"the folder {folder.path} holds data; only empty folders can be added to {stored.bookie}"
            )
    cookie = replace(
        stored,
        journal_dirs=stored.journal_dirs + _prefixed(folders.journal_dirs[len(stored.journal_dirs) :]),
        ledger_dirs=stored.ledger_dirs + _prefixed(folders.ledger_dirs[len(stored.ledger_dirs) :]),
    )
    outdated = (folder.path for folder in members if (folder.cookie or stored) != cookie)
    epoch = max(folder.epoch for folder in found) + 1
    return ClaimPlan(stored, cookie, tuple(folder.path for folder in added), lost, emptied, tuple(outdated), epoch)


def _newest_format(found: Sequence[FoundFolder]) -> int:
    """Return the newest cookie format of the folders; the store's cookie may have another one."""
    return max(folder.cookie.format_version for folder in found if folder.cookie is not None)


def _folders_of(cookie: Cookie) -> StorageFolders:
    index_dir = cookie.index_dirs[0] if cookie.index_dirs else None
    return StorageFolders(cookie.journal_dirs, cookie.ledger_dirs, index_dir)


def _counts_line(cookie: Cookie, folders: StorageFolders, remedy: str) -> str:
    return f"bookie {cookie.bookie} has {_folders_of(cookie).counts}, but {folders.counts} are configured; {remedy}"


def _check_counts(folders: StorageFolders, stored: Cookie, options: ClaimOptions) -> None:
    had = _folders_of(stored)
    if had.index_dir is None and folders.index_dir is not None:
        raise StartupError(
            f"bookie {stored.bookie} has its index in {folders.ledger_dirs[0]}, not in {folders.index_dir}; "
            "remove indexDirectories"
        )
    if had.index_dir is not None and folders.index_dir is None:
        was = had.index_dir.removeprefix(FORMAT_PREFIX)
        raise StartupError(f"bookie {stored.bookie} has its index in {was}; set indexDirectories to that folder")
    more = (
        len(folders.journal_dirs) - len(had.journal_dirs),
        len(folders.ledger_dirs) - len(had.ledger_dirs),
    )
    if min(more) < 0:
        raise StartupError(_counts_line(stored, folders, "folders cannot be removed, configure all of them"))
    if max(more) > 0 and not options.allow_expansion:
        remedy = "to add empty folders after the others, set allowStorageExpansion=true"
        raise StartupError(_counts_line(stored, folders, remedy))


def _is_part(cookie: Cookie, stored: Cookie) -> bool:
    """Whether a folder's cookie is the store's or the one before the last expansion."""
    journals, ledgers = len(cookie.journal_dirs), len(cookie.ledger_dirs)
    return cookie == replace(
        stored,
        journal_dirs=stored.journal_dirs[:journals],
        ledger_dirs=stored.ledger_dirs[:ledgers],
        format_version=cookie.format_version,
    )


def _check_epochs(members: Sequence[FoundFolder], stored: Cookie) -> None:
    """Refuse a volume that was given up and has returned: it lacks later data, and the others lack its data."""
    if any(folder.state is FolderState.LOST for folder in members):
        return  # this start accepts its loss; the other folders get the new epoch later
    used = [folder for folder in members if folder.state is FolderState.USED]
    newest = max((folder.epoch for folder in used), default=0)
    for folder in used:
        if folder.epoch < newest:
            raise StartupError(
                f"the folder {folder.path} was given up as lost, and bookie {stored.bookie} went on without it; empty "
                "it and start once with acceptLostVolumes=true (--accept-lost-volumes)"
            )


def _check_lost(lost: Sequence[str], emptied: Sequence[str], stored: Cookie, options: ClaimOptions) -> None:
    if not (lost or emptied) or options.accept_lost:
        return
    folder, what = (lost[0], "is empty: its volume is missing or lost; mount it") if lost else (emptied[0], "")
    raise StartupError(
        f"the folder {folder} of bookie {stored.bookie} {what or 'has lost its files; put them back'}, or start once "
        "with acceptLostVolumes=true (--accept-lost-volumes) to come up in limbo with the remaining data, or empty all "
        "folders to start a new bookie"
    )


def _check_places(folders: StorageFolders, found: Sequence[FoundFolder]) -> None:
    places = folders.places()
    for folder in found:
        if folder.cookie is not None and folder.place != places[folder.path]:
            was = "nothing" if folder.place is None else " and ".join(folder.place.splitlines())
            now = " and ".join(places[folder.path].splitlines())
            raise StartupError(
                f"the folder {folder.path} was stamped as {was} and is configured as {now}; swap them back"
            )


def _os_error_line(error: OSError, folders: StorageFolders) -> str:
    where = error.filename or ", ".join(folders.places())
    return f"the folder {where} cannot be used: {error.strerror or error}; check its permissions and its volume"
