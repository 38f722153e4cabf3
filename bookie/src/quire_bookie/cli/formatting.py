"""`quire bookie format`: empties the folders of a stopped bookie and removes its cookie from the cluster.

The order survives a crash at any step: data first, then the cookie in the metadata, the folders' own VERSION last, so
that a second call finds the id and continues. A bookie started on half-formatted folders is refused: the files that
mark a folder as used, and those that record accepted losses, are deleted after the data; in a journal the mark goes
first, and the proof of the index goes last. A bookie that ledgers still name keeps its cookie even if the operator
accepts the loss: its id must never return with empty storage, and auto-recovery must know which bookie is missing. The
folders then become a new bookie with a new id.
"""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.errors import MetadataFormatError, NodeMissingError, StartupError
from quire_bookie.journal.mark import MARK_NAME
from quire_bookie.metadata.cookies import CookieInUseError, Cookies, decode_cookie
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.model import BookieId
from quire_bookie.storage.index.index_commits import PROOF_NAME

_CURRENT = "current"
_IDENTITY = ("RUN", "VERSION", "PLACE", "STATE")


@dataclass(frozen=True, slots=True)
class FormatPlan:
    """Describes a format before it runs. `held_by`: why the cookie must stay, or None."""

    bookie: BookieId | None
    doomed: tuple[Path, ...]
    size_bytes: int
    held_by: str | None


async def format_bookie(
    disk: Disk,
    metadata: MetadataStore,
    folders: Sequence[str],
    *,
    accept_loss: bool,
    confirm: Callable[[FormatPlan], bool],
) -> FormatPlan | None:
    """Empty the folders. Returns the executed plan, or None if `confirm` refused or there was nothing to delete.

    StartupError, one line: a folder is in use or contains foreign files, or ledgers name the bookie and the loss was
    not accepted. MetadataError: nothing was deleted.
    """
    with contextlib.ExitStack() as undo:
        present = [Path(folder) for folder in dict.fromkeys(folders) if (Path(folder) / _CURRENT).is_dir()]
        for folder in present:
            try:
                undo.callback(disk.lock_dir(str(folder / _CURRENT)).release)
            except BlockingIOError as error:
                raise StartupError(
                    f"the folder {folder} is in use by another process; stop the bookie first"
                ) from error
        bookie = _bookie_of(present)
        held_by = None if bookie is None else await _why_held(metadata, bookie)
        if held_by is not None and "is running" in held_by:
            raise StartupError(held_by)
        if held_by is not None and not accept_loss:
            raise StartupError(
                f"{held_by}. Its copies may be the last ones: drain the bookie first, "
                "or give --accept-loss to delete them anyway"
            )
        doomed = tuple(path for folder in present for path in _doomed(folder))
        plan = FormatPlan(bookie, doomed, sum(map(_size_bytes, doomed)), held_by)
        if (not doomed and bookie is None) or not confirm(plan):
            return None
        for path in doomed:
            _remove(path)
        for folder in present:
            await disk.sync_dir(str(folder))
        if bookie is not None and held_by is None:
            with contextlib.suppress(NodeMissingError):
                await Cookies(metadata).delete(bookie)
        for folder in present:
            for name in _IDENTITY:
                (folder / _CURRENT / name).unlink(missing_ok=True)
            await disk.sync_dir(str(folder / _CURRENT))
        return plan


def _bookie_of(folders: Sequence[Path]) -> BookieId | None:
    found: dict[BookieId, Path] = {}
    for folder in folders:
        version = folder / _CURRENT / "VERSION"
        if not version.exists():
            continue
        try:
            cookie = decode_cookie(version.read_bytes())
        except MetadataFormatError as error:
            raise StartupError(f"{version} cannot be read: {error}; delete the folder by hand to discard it") from error
        if not all(named.startswith("quire") for named in cookie.ledger_dirs):
            raise StartupError(f"the folder {folder} belongs to the Java bookie {cookie.bookie}; nothing was deleted")
        found[cookie.bookie] = folder
    if len(found) > 1:
        names = " and ".join(f"{folder} to {bookie}" for bookie, folder in found.items())
        raise StartupError(f"the folders belong to several bookies: {names}; format one bookie at a time")
    return next(iter(found), None)


async def _why_held(metadata: MetadataStore, bookie: BookieId) -> str | None:
    """Return why the cookie must stay (the bookie runs, or a ledger names it), or None."""
    cookies = Cookies(metadata)
    if await cookies.read(bookie) is None:
        return None
    try:
        await cookies.check_free(bookie)
    except CookieInUseError as error:
        return str(error)
    return None


def _doomed(folder: Path) -> list[Path]:
    """Return all files of a stamped folder except its identity, hidden files, lock files and lost+found."""
    found = [path for path in folder.iterdir() if path.name not in (_CURRENT, "lost+found", "LOCK", "lock")]
    found += [path for path in (folder / _CURRENT).iterdir() if path.name not in (*_IDENTITY, "LOCK", "lock")]
    stamped = (folder / _CURRENT / "VERSION").exists()
    return sorted((path for path in found if stamped and not path.name.startswith(".")), key=_deletion_order)


def _deletion_order(path: Path) -> tuple[int, Path]:
    """A start refuses a journal without its mark, and a proof without its index; it may accept the reverse."""
    return (path.name == PROOF_NAME) - (path.name == MARK_NAME), path


def _size_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
