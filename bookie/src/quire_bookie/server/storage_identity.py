"""Whose storage this is: stamps empty volumes with a new bookie id, recognises stamped ones, refuses all others.

A bookie's id belongs to its storage. An empty bookie that came up under an id that ledgers name would answer *no such
entry* for entries that were acknowledged, and recovery would truncate those ledgers. Hence: an id is drawn only when
every volume is empty, and one missing or empty volume beside stamped ones is a refusal.

In each folder, `current/VERSION` is the cookie (quire_bookie.metadata.cookies) and `current/PLACE` the roles of this
folder, one per line (`journal 0`), so that volumes mounted in each other's place are found out and moved ones are not
refused. Folder names in the cookie carry the prefix `quire1:`, the version of the formats on disk; files of a Java
bookie, which has no such prefix, are neither read nor written.

Order when stamping: folders first, the store last. A crash in between leaves stamped folders without data and no
cookie in the store; no ledger can name that id yet, so the stamping is completed at the next start.
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import DirectoryLock, Disk
from quire_bookie.errors import BadVersionError, MetadataFormatError, StartupError
from quire_bookie.metadata.cookies import Cookie, Cookies, decode_cookie, encode_cookie
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId

FORMAT_PREFIX = "quire1:"
_ANY_FORMAT = re.compile(r"quire[0-9]+:")
_CURRENT = "current"
_COOKIE_FILE = "VERSION"
_PLACE_FILE = "PLACE"
# Names that say nothing about data; the prefixes also cover what a crash left of replacing those files.
_NOT_DATA = re.compile(r"\..*|current|lost\+found|LOCK|lock|(VERSION|PLACE).*")
_JAVA_FILE = re.compile(r".*\.txn|.*\.log|lastMark")
_ID_SUFFIX_BYTES = 4


@dataclass(frozen=True, slots=True)
class StorageFolders:
    """The folders of one bookie, in the order of its configuration. Absolute paths."""

    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]

    def places(self) -> dict[str, str]:
        """What PLACE says in each folder. A folder may have several roles."""
        roles: dict[str, list[str]] = {}
        for role, folders in (("journal", self.journal_dirs), ("ledgers", self.ledger_dirs)):
            for index, folder in enumerate(folders):
                roles.setdefault(folder, []).append(f"{role} {index}\n")
        return {folder: "".join(lines) for folder, lines in roles.items()}


@dataclass(slots=True)
class StorageIdentity:
    """The bookie that this storage is. `release` gives the folders free for another process."""

    bookie: BookieId
    instance_id: str
    is_new: bool
    locks: list[DirectoryLock] = field(default_factory=list)

    def release(self) -> None:
        """Release the folder locks. Calling it again does nothing."""
        while self.locks:
            self.locks.pop().release()


@dataclass(frozen=True, slots=True)
class _Folder:
    """What a folder holds. `cookie` None: no VERSION file."""

    path: str
    cookie: Cookie | None
    place: str | None
    has_data: bool


async def claim_storage(
    disk: Disk,
    metadata: MetadataStore,
    folders: StorageFolders,
    *,
    instance_id: str,
    host_name: str,
    chance: Chance,
) -> StorageIdentity:
    """Recognise or stamp the folders, lock them, and see that the store has the cookie.

    StartupError, one line for a person, for folders that cannot be used or belong to something else.
    MetadataUnavailableError and MetadataUnknownError: try again; folders that were stamped are recognised then.
    """
    try:
        # Looked at before anything is created: a foreign folder stays as it is.
        await _inspect(disk, folders)
        locks = await _lock(disk, folders)
    except OSError as error:
        raise StartupError(_os_error_line(error, folders)) from error
    identity = StorageIdentity(BookieId(""), instance_id, False, locks)
    with contextlib.ExitStack() as undo:
        undo.callback(identity.release)
        try:
            found = await _inspect(disk, folders)
            if not any(folder.cookie for folder in found):
                identity.bookie = await _stamp_new(disk, metadata, folders, found, instance_id, host_name, chance)
                identity.is_new = True
            else:
                identity.bookie = await _recognise(disk, metadata, folders, found, instance_id)
        except OSError as error:
            raise StartupError(_os_error_line(error, folders)) from error
        undo.pop_all()
    return identity


async def _lock(disk: Disk, folders: StorageFolders) -> list[DirectoryLock]:
    locks: list[DirectoryLock] = []
    with contextlib.ExitStack() as undo:
        for path in folders.places():
            await disk.make_dirs(f"{path}/{_CURRENT}")
            try:
                lock = disk.lock_dir(f"{path}/{_CURRENT}")
            except BlockingIOError as error:
                raise StartupError(f"the folder {path} is in use by another process; stop it first") from error
            undo.callback(lock.release)
            locks.append(lock)
        undo.pop_all()
    return locks


async def _inspect(disk: Disk, folders: StorageFolders) -> list[_Folder]:
    return [await _inspect_folder(disk, path) for path in folders.places()]


async def _inspect_folder(disk: Disk, path: str) -> _Folder:
    """Read a folder without changing it. StartupError for what Quire did not write."""
    names: set[str] = set()
    for each in (path, f"{path}/{_CURRENT}"):
        if await disk.exists(each):
            names.update(await disk.list_dir(each))
    data = sorted(name for name in names if not _NOT_DATA.fullmatch(name))
    if _COOKIE_FILE not in names:
        java = next((name for name in data if _JAVA_FILE.fullmatch(name)), None)
        if java is not None:
            raise StartupError(
                f"the folder {path} holds {java}, a file of a Java bookie; Quire needs a folder of its own"
            )
        if data:
            raise StartupError(
                f"the folder {path} holds {data[0]} but no {_CURRENT}/{_COOKIE_FILE}: "
                "it is not a bookie's folder, or is damaged; use an empty one"
            )
        return _Folder(path, None, None, False)
    try:
        cookie = decode_cookie(await disk.read_file(f"{path}/{_CURRENT}/{_COOKIE_FILE}"))
    except MetadataFormatError as error:
        raise StartupError(f"{path}/{_CURRENT}/{_COOKIE_FILE} cannot be read: {error}") from error
    _refuse_foreign_format(path, cookie)
    place = (await disk.read_file(f"{path}/{_CURRENT}/{_PLACE_FILE}")).decode() if _PLACE_FILE in names else None
    return _Folder(path, cookie, place, bool(data))


def _refuse_foreign_format(path: str, cookie: Cookie) -> None:
    for named in (*cookie.journal_dirs, *cookie.ledger_dirs):
        if named.startswith(FORMAT_PREFIX):
            continue
        version = _ANY_FORMAT.match(named)
        if version is not None:
            raise StartupError(f"the folder {path} has format {version[0][:-1]}; this version of Quire reads quire1")
        raise StartupError(
            f"the folder {path} belongs to the Java bookie {cookie.bookie}; Quire neither reads nor writes its files"
        )


async def _stamp_new(
    disk: Disk,
    metadata: MetadataStore,
    folders: StorageFolders,
    found: Sequence[_Folder],
    instance_id: str,
    host_name: str,
    chance: Chance,
) -> BookieId:
    bookie = draw_bookie_id(host_name, chance)
    cookie = Cookie(
        bookie=bookie,
        journal_dirs=tuple(FORMAT_PREFIX + path for path in folders.journal_dirs),
        ledger_dirs=tuple(FORMAT_PREFIX + path for path in folders.ledger_dirs),
        instance_id=instance_id,
    )
    await _stamp(disk, folders, [folder.path for folder in found], cookie)
    await _publish(metadata, cookie)
    return bookie


def draw_bookie_id(host_name: str, chance: Chance) -> BookieId:
    """`<host name>-<8 hex>`; characters that an id must not have become `-`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", host_name) or "bookie"
    return BookieId(f"{name}-{chance.token(_ID_SUFFIX_BYTES).hex()}")


async def _stamp(disk: Disk, folders: StorageFolders, paths: Sequence[str], cookie: Cookie) -> None:
    try:
        value = encode_cookie(cookie)
    except ValueError as error:
        raise StartupError(str(error)) from error
    places = folders.places()
    for path in paths:
        # PLACE first: a folder with VERSION has both.
        await disk.replace_file(f"{path}/{_CURRENT}/{_PLACE_FILE}", places[path].encode())
        await disk.replace_file(f"{path}/{_CURRENT}/{_COOKIE_FILE}", value)


async def _publish(metadata: MetadataStore, cookie: Cookie) -> None:
    try:
        await Cookies(metadata).create(cookie)
    except BadVersionError as error:
        raise StartupError(
            f"the cluster already has another bookie {cookie.bookie}; empty this bookie's folders and start again"
        ) from error


async def _recognise(
    disk: Disk, metadata: MetadataStore, folders: StorageFolders, found: Sequence[_Folder], instance_id: str
) -> BookieId:
    """The checks on stamped folders, in the order in which their messages help most."""
    cookie = _agreed_cookie(found)
    if cookie.instance_id != instance_id:
        raise StartupError(
            f"the folder {found[0].path} belongs to bookie {cookie.bookie} of cluster {cookie.instance_id}; "
            f"this metadata store is of cluster {instance_id}"
        )
    counts = (len(cookie.journal_dirs), len(cookie.ledger_dirs))
    if counts != (len(folders.journal_dirs), len(folders.ledger_dirs)):
        raise StartupError(
            f"bookie {cookie.bookie} has {counts[0]} journal and {counts[1]} ledger folders, but "
            f"{len(folders.journal_dirs)} and {len(folders.ledger_dirs)} are configured; configure all of them"
        )
    stored = await Cookies(metadata).read(cookie.bookie)
    if stored is None and any(folder.has_data for folder in found):
        raise StartupError(
            f"bookie {cookie.bookie} is no longer part of the cluster (its cookie was deleted); "
            "empty its folders to start a new bookie"
        )
    if stored is not None and replace(stored.value, format_version=cookie.format_version) != cookie:
        raise StartupError(f"the cookie of bookie {cookie.bookie} in the cluster is not the one in {found[0].path}")
    unstamped = [folder.path for folder in found if folder.cookie is None]
    if stored is not None and unstamped:
        raise StartupError(
            f"the folder {unstamped[0]} of bookie {cookie.bookie} is empty: its volume is missing or lost; "
            "mount it, or empty all folders to start a new bookie"
        )
    _check_places(folders, found)
    if stored is None:
        await _stamp(disk, folders, unstamped, cookie)
        await _publish(metadata, cookie)
    return cookie.bookie


def _agreed_cookie(found: Sequence[_Folder]) -> Cookie:
    stamped = [folder for folder in found if folder.cookie is not None]
    first = stamped[0]
    assert first.cookie is not None
    for folder in stamped[1:]:
        assert folder.cookie is not None
        if folder.cookie.bookie != first.cookie.bookie:
            raise StartupError(
                f"the folder {folder.path} belongs to bookie {folder.cookie.bookie} "
                f"and {first.path} to bookie {first.cookie.bookie}"
            )
        if folder.cookie != first.cookie:
            raise StartupError(f"the cookies in {first.path} and {folder.path} differ")
    return first.cookie


def _check_places(folders: StorageFolders, found: Sequence[_Folder]) -> None:
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
    return f"the folder {where} cannot be used: {error.strerror or error}"
