"""Owns the files `VERSION`, `PLACE` and `STATE` in the `current/` of each folder of a bookie.

    VERSION   the cookie (quire_bookie.metadata.cookies); written last: a folder with this file has the others
    PLACE     the roles of the folder, one per line (`journal 0`), so that swapped volumes are detected, and a moved
              folder is not refused
    STATE     `new`: nothing was ever acknowledged with it; `used`; `lost`: it replaces a lost volume, and the bookie is
              not in limbo yet. Then an epoch: how often the bookie continued without a lost volume. A volume that
              returns later has an older epoch, and no longer fits the data of the others. Then a checksum (CRC-32C of
              the preceding text), which files of early versions lack

Reads and writes these files and decides nothing: `storage_identity` does. An inspection must never change a folder.
"""

import re
from collections.abc import Sequence
from enum import Enum

from quire_bookie.crc import crc32c
from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.errors import MetadataFormatError, StartupError
from quire_bookie.metadata.cookies import Cookie, decode_cookie, encode_cookie

FORMAT_PREFIX = "quire1:"
CURRENT = "current"
_ANY_FORMAT = re.compile(r"quire[0-9]+:")
_COOKIE_FILE = "VERSION"
_PLACE_FILE = "PLACE"
_STATE_FILE = "STATE"
# Names that do not indicate data; the prefixes also cover temporary files that a crash left when replacing them.
_NOT_DATA = re.compile(r"\..*|current|lost\+found|LOCK|lock|(VERSION|PLACE|STATE|RUN|reserve\.).*")
_JAVA_FILE = re.compile(r".*\.txn|.*\.log|lastMark")
_JOURNAL_FILE = re.compile(r"last-mark|journal-.*")
_OUR_FILE = re.compile(r"last-mark|journal\.witness|journal-\d+\.log|[0-9a-f]+\.qlog|index\.proof|limbo\.record")
_PUT_BACK = f"put it back: {CURRENT}/{_COOKIE_FILE} is the same in every folder of a bookie"


class FolderState(Enum):
    """The state in the file STATE."""

    NEW = "new"
    USED = "used"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class StorageFolders:
    """The folders of one bookie, in the order of its configuration. Absolute paths.

    `index_dir` None: the index is in the first ledger folder.
    """

    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    index_dir: str | None = None

    def places(self) -> dict[str, str]:
        """Return the content of PLACE in each folder. A folder may have several roles."""
        roles: dict[str, list[str]] = {}
        index_dirs = () if self.index_dir is None else (self.index_dir,)
        for role, folders in (("journal", self.journal_dirs), ("ledgers", self.ledger_dirs), ("index", index_dirs)):
            for number, folder in enumerate(folders):
                roles.setdefault(folder, []).append(f"{role} {number}\n")
        return {folder: "".join(lines) for folder, lines in roles.items()}

    def first(self, journals: int, ledgers: int) -> "StorageFolders":
        """Return these folders limited to the first `journals` and `ledgers`, with the index."""
        return StorageFolders(self.journal_dirs[:journals], self.ledger_dirs[:ledgers], self.index_dir)

    @property
    def counts(self) -> str:
        """The numbers of folders, for an error."""
        index = "" if self.index_dir is None else " and an index folder"
        return f"{len(self.journal_dirs)} journal and {len(self.ledger_dirs)} ledger folders{index}"


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """The content of a folder. `cookie` None: the folder has no VERSION file and no data."""

    path: str
    cookie: Cookie | None = None
    place: str | None = None
    state: FolderState = FolderState.NEW
    epoch: int = 0
    has_data: bool = False
    emptied: bool = False
    """The folder was used, and its data is gone."""


async def inspect(disk: Disk, folders: StorageFolders) -> list[FoundFolder]:
    """Inspect every folder. StartupError for a folder with foreign files or with a damaged stamp."""
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
    """Whether files that every start leaves are missing. The index checks the logs of later ledger folders."""
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
        raise StartupError(f"{path} is damaged: it holds {text[:20]!r}; put the file back") from error
    if content not in (encode_state(*found), f"{state} {epoch}\n".encode()):
        raise StartupError(f"{path} is damaged: its checksum does not match; put the file back")
    return found


def encode_state(state: FolderState, epoch: int) -> bytes:
    """Return the content of STATE. The checksum prevents that a wrong epoch makes another folder count as lost."""
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
    """Add a folder to the bookie, durably. A crash leaves it either unstamped or stamped."""
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
