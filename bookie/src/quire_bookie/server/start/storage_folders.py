"""The folders of a bookie and what each says of itself. Owns the files `VERSION`, `PLACE` and `STATE` in `current/`.

    VERSION   the cookie (quire_bookie.metadata.cookies); written last: a folder that has it has the others
    PLACE     the roles of the folder, one per line (`journal 0`), so that volumes that were mounted in each other's
              place are found out, and a moved folder is not refused
    STATE     `new`: nothing was ever acknowledged with it; `used`; `lost`: it took the place of a lost volume, and the
              bookie is not in limbo yet. Then an epoch: how often the bookie went on without a lost volume. One that
              turns up again later has an older epoch, and no longer belongs to what the others hold. Then a checksum
              (CRC-32C of what stands before it), which files of early versions do not have

Reads and writes these files and decides nothing: `storage_identity` does. Must never change a folder while looking.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from quire_bookie.crc import crc32c
from quire_bookie.env.disk import Disk
from quire_bookie.errors import MetadataFormatError, StartupError
from quire_bookie.metadata.cookies import Cookie, decode_cookie, encode_cookie

FORMAT_PREFIX = "quire1:"
CURRENT = "current"
_ANY_FORMAT = re.compile(r"quire[0-9]+:")
_COOKIE_FILE = "VERSION"
_PLACE_FILE = "PLACE"
_STATE_FILE = "STATE"
# Names that say nothing about data; the prefixes also cover what a crash left of replacing those files.
_NOT_DATA = re.compile(r"\..*|current|lost\+found|LOCK|lock|(VERSION|PLACE|STATE|RUN|reserve\.).*")
_JAVA_FILE = re.compile(r".*\.txn|.*\.log|lastMark")
_JOURNAL_FILE = re.compile(r"last-mark|journal-.*")
_OUR_FILE = re.compile(r"last-mark|journal\.witness|journal-\d+\.log|[0-9a-f]+\.qlog|index\.proof|limbo\.record")
_PUT_BACK = f"put it back: {CURRENT}/{_COOKIE_FILE} is the same in every folder of a bookie"


class FolderState(Enum):
    """What STATE says."""

    NEW = "new"
    USED = "used"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class StorageFolders:
    """The folders of one bookie, in the order of its configuration. Absolute paths.

    `index_dir` None: the index lives in the first ledger folder.
    """

    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    index_dir: str | None = None

    def places(self) -> dict[str, str]:
        """What PLACE says in each folder. A folder may have several roles."""
        roles: dict[str, list[str]] = {}
        index_dirs = () if self.index_dir is None else (self.index_dir,)
        for role, folders in (("journal", self.journal_dirs), ("ledgers", self.ledger_dirs), ("index", index_dirs)):
            for number, folder in enumerate(folders):
                roles.setdefault(folder, []).append(f"{role} {number}\n")
        return {folder: "".join(lines) for folder, lines in roles.items()}

    def first(self, journals: int, ledgers: int) -> "StorageFolders":
        """The same bookie with that many of the first folders, and its index."""
        return StorageFolders(self.journal_dirs[:journals], self.ledger_dirs[:ledgers], self.index_dir)

    @property
    def counts(self) -> str:
        """For a message."""
        index = "" if self.index_dir is None else " and an index folder"
        return f"{len(self.journal_dirs)} journal and {len(self.ledger_dirs)} ledger folders{index}"


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """What a folder holds. `cookie` None: no VERSION file, and nothing else but empty places."""

    path: str
    cookie: Cookie | None = None
    place: str | None = None
    state: FolderState = FolderState.NEW
    epoch: int = 0
    has_data: bool = False
    emptied: bool = False
    """It was used, and its data is gone."""


async def inspect(disk: Disk, folders: StorageFolders) -> list[FoundFolder]:
    """Look at every folder. StartupError for one with files that Quire did not write, or whose stamp is damaged."""
    return [await _inspect_folder(disk, folders, path) for path in folders.places()]


async def _inspect_folder(disk: Disk, folders: StorageFolders, path: str) -> FoundFolder:
    names: set[str] = set()
    for each in (path, f"{path}/{CURRENT}"):
        if await disk.exists(each):
            names.update(await disk.list_dir(each))
    data = sorted(name for name in names if not _NOT_DATA.fullmatch(name))
    if _COOKIE_FILE not in names:
        _refuse_foreign_files(path, data)
        return FoundFolder(path)
    try:
        cookie = decode_cookie(await disk.read_file(f"{path}/{CURRENT}/{_COOKIE_FILE}"))
    except MetadataFormatError as error:
        raise StartupError(f"{path}/{CURRENT}/{_COOKIE_FILE} cannot be read: {error}; {_PUT_BACK}") from error
    _refuse_foreign_format(path, cookie)
    place = (
        (await disk.read_file(f"{path}/{CURRENT}/{_PLACE_FILE}")).decode(errors="replace")
        if _PLACE_FILE in names
        else None
    )
    state, epoch = FolderState.USED if data else FolderState.NEW, 0
    if _STATE_FILE in names:
        state, epoch = await _read_state(disk, f"{path}/{CURRENT}/{_STATE_FILE}")
    emptied = state is FolderState.USED and _lacks_files(folders, path, data)
    return FoundFolder(path, cookie, place, state, epoch, bool(data), emptied)


def _lacks_files(folders: StorageFolders, path: str, data: Sequence[str]) -> bool:
    """Whether files are gone that every start leaves. A later ledger folder may have none: the index knows its logs."""
    if path in folders.journal_dirs and not any(_JOURNAL_FILE.fullmatch(name) for name in data):
        return True
    return path == folders.ledger_dirs[0] and not data


async def _read_state(disk: Disk, path: str) -> tuple[FolderState, int]:
    content = await disk.read_file(path)
    text = content.decode(errors="replace").strip()
    try:
        state, epoch = text.split(" ")[:2]
        found = FolderState(state), int(epoch)
    except ValueError as error:
        raise StartupError(f"{path} is damaged: it says {text[:20]!r}; put the file back") from error
    if content not in (encode_state(*found), f"{state} {epoch}\n".encode()):
        raise StartupError(f"{path} is damaged: its checksum does not match; put the file back")
    return found


def encode_state(state: FolderState, epoch: int) -> bytes:
    """What STATE holds. A wrong epoch would have another folder called a lost one, hence the checksum."""
    text = f"{state.value} {epoch}"
    return f"{text} {crc32c(text.encode()):08x}\n".encode()


def _refuse_foreign_files(path: str, data: Sequence[str]) -> None:
    ours = next((name for name in data if _OUR_FILE.fullmatch(name)), None)
    if ours is not None:
        raise StartupError(f"the folder {path} holds {ours} but its {CURRENT}/{_COOKIE_FILE} is missing; {_PUT_BACK}")
    java = next((name for name in data if _JAVA_FILE.fullmatch(name)), None)
    if java is not None:
        raise StartupError(f"the folder {path} holds {java}, a file of a Java bookie; Quire needs a folder of its own")
    if data:
        raise StartupError(
            f"the folder {path} holds {data[0]} but no {CURRENT}/{_COOKIE_FILE}: "
            "it is not a bookie's folder, or is damaged; use an empty one"
        )


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


async def stamp(
    disk: Disk, folders: StorageFolders, path: str, cookie: Cookie, state: FolderState, epoch: int = 0
) -> None:
    """Make a folder one of the bookie's, durably. A crash leaves it unstamped or stamped."""
    await disk.replace_file(f"{path}/{CURRENT}/{_PLACE_FILE}", folders.places()[path].encode())
    await write_state(disk, path, state, epoch)
    await write_cookie(disk, path, cookie)


async def write_state(disk: Disk, path: str, state: FolderState, epoch: int) -> None:
    """Replace STATE, durably."""
    await disk.replace_file(f"{path}/{CURRENT}/{_STATE_FILE}", encode_state(state, epoch))


async def write_cookie(disk: Disk, path: str, cookie: Cookie) -> None:
    """Replace VERSION, durably. StartupError for a folder name that a cookie cannot hold."""
    try:
        value = encode_cookie(cookie)
    except ValueError as error:
        raise StartupError(str(error)) from error
    await disk.replace_file(f"{path}/{CURRENT}/{_COOKIE_FILE}", value)
