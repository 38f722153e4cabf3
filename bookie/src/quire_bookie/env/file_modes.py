"""Restricts the files of a process to its own user.

Owns the modes of new folders and files, and finds folders that other users may enter. Must never change the mode of an
existing folder: the root of a volume belongs to its owner, and Kubernetes widens group rights there (`fsGroup`). Only
the rights of other users count, so a group may have access.
"""

import os
import stat
from collections.abc import Iterable, Sequence

FOLDER_MODE = 0o700
FILE_MODE = 0o600
_UMASK = 0o077


def keep_new_files_private() -> None:
    """Restrict new files of this process to its user, including those that RocksDB, SQLite and obstore create."""
    os.umask(_UMASK)


def make_private_dirs(path: str) -> list[str]:
    """Create the folder and its missing parents; return the new ones, outermost first. OSError."""
    missing = []
    folder = path.rstrip("/") or "/"
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder) or "."
    missing.reverse()
    for each in missing:
        try:
            os.mkdir(each, FOLDER_MODE)
        except FileExistsError:
            if not os.path.isdir(each):
                raise
    return missing


def open_to_others(paths: Iterable[str]) -> list[str]:
    """Return the outermost of these folders that we own and that every user of the machine may list or enter."""
    found: list[str] = []
    for path in sorted(paths):
        try:
            seen = os.stat(path)
        except OSError:
            continue  # missing: this process creates it
        is_open = seen.st_uid == os.geteuid() and seen.st_mode & stat.S_IRWXO
        if is_open and not any(path.startswith(f"{outer}/") for outer in found):
            found.append(path)
    return found


def open_to_others_text(paths: Sequence[str]) -> str:
    """Return a warning that names the folders that others may read, and the remedy."""
    named = " ".join(paths)
    return f"every user of this machine may read below {named}; run: chmod 700 {named}"
