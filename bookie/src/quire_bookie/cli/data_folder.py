"""Claims a process's data folder: checks that it belongs to Quire, creates and locks it. Reads names, never data."""

import errno
import logging
import os
import re
from collections.abc import Iterable

from quire_bookie.env.disk import DirectoryLock, Disk
from quire_bookie.env.file_modes import open_to_others, open_to_others_text
from quire_bookie.errors import StartupError

_log = logging.getLogger("quire.disk")
_NOT_DATA = re.compile(r"\..*|lost\+found")
LEDGER_PASSWORD_FILE = "ledger-password"
"""Name of the file in a standalone's folder."""
STANDALONE_FOLDER = re.compile(r"metadata|bookie-[0-9]+|standalone\.json.*|ledger-password.*")
BOOKIE_FOLDER = re.compile(r"journal|ledgers")


async def claim_data_folder(disk: Disk, path: str, ours: re.Pattern[str]) -> DirectoryLock:
    """Create and lock the folder. StartupError, one line, if it contains foreign files or cannot be used."""
    try:
        if await disk.exists(path):
            _refuse_foreign(path, await disk.list_dir(path), ours)
        await disk.make_dirs(path)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return disk.lock_dir(path)
    except BlockingIOError as error:
        raise StartupError(f"{path} is in use by another process; stop it or choose another --data") from error
    except NotADirectoryError as error:
        raise StartupError(f"{path} is not a folder; choose another --data") from error
    except OSError as error:
        raise StartupError(f"{path} cannot be used: {error.strerror or error}; choose another --data") from error


def warn_of_open_folders(folders: Iterable[str]) -> None:
    """Log one warning that lists the folders, and subfolders, that other users of the machine may read.

    Their modes stay: the operator may have chosen them, and the owner of a mounted volume may differ.
    """
    below = [(folder, each) for folder in folders if os.path.isdir(folder) for each in ("", *os.listdir(folder))]
    found = open_to_others({os.path.join(*parts).rstrip("/") for parts in below if os.path.isdir(os.path.join(*parts))})
    if found:
        _log.warning("%s", open_to_others_text(found))


def _refuse_foreign(path: str, names: list[str], ours: re.Pattern[str]) -> None:
    foreign = [name for name in names if not ours.fullmatch(name) and not _NOT_DATA.fullmatch(name)]
    if not foreign:
        return
    if STANDALONE_FOLDER.fullmatch(foreign[0]):
        what = "is the data of `quire standalone`"
    elif BOOKIE_FOLDER.fullmatch(foreign[0]) and "current" not in names:
        what = "is the data of `quire bookie start`"
    else:
        what = f"contains files that are not Quire's ({', '.join(foreign[:3])}{', ...' if foreign[3:] else ''})"
    raise StartupError(f"{path} {what}; choose another --data")
