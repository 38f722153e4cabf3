"""Reserves space of the embedded metadata store for a full disk: empty files that are deleted one by one.

    <folder>/reserve.<k>    k from 0, of 1 MiB; allocated, never read

Deleting a topic, trimming a ledger and starting need a commit, and free space. A commit succeeds while one of the files
is left; they are allocated again once there is space. Used only by the database thread.
"""

import logging
import os
from pathlib import Path

from quire_bookie.env.durable import allocate, sync_all, sync_path
from quire_bookie.env.file_modes import FILE_MODE
from quire_bookie.limits import METADATA_COMMIT_BYTES, METADATA_RESERVE_FILE_BYTES, METADATA_RESERVE_FILES

_log = logging.getLogger("quire.metadata.local")


class MetadataReserve:
    """The reserve of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        paths = [folder / f"reserve.{number}" for number in range(METADATA_RESERVE_FILES)]
        whole = [path.exists() and path.stat().st_size == METADATA_RESERVE_FILE_BYTES for path in paths]
        self._held = [path for path, there in zip(paths, whole, strict=True) if there]
        self._missing = [path for path, there in zip(paths, whole, strict=True) if not there]

    def before_commit(self) -> None:
        """Free as much space as a commit needs; or refill the reserve if there is much more than that."""
        assert len(self._held) + len(self._missing) == METADATA_RESERVE_FILES
        found = os.statvfs(self._folder)
        free_bytes = found.f_bavail * found.f_frsize
        if free_bytes < METADATA_COMMIT_BYTES and self._held:
            self.release()
        elif self._missing and free_bytes >= 2 * METADATA_COMMIT_BYTES + METADATA_RESERVE_FILE_BYTES:
            self._allocate()

    def release(self) -> bool:
        """Free one file. False: none is left."""
        if not self._held:
            return False
        path = self._held.pop()
        path.unlink()
        self._missing.append(path)
        sync_path(self._folder)
        _log.warning("the disk is full, %d reserve files are left in %s", len(self._held), self._folder)
        return True

    def _allocate(self) -> None:
        path = self._missing[-1]
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            allocate(fd, METADATA_RESERVE_FILE_BYTES)
            sync_all(fd)
        except OSError as error:
            path.unlink()
            _log.debug("%s cannot be allocated yet: %s", path, error)
            return
        finally:
            os.close(fd)
        self._held.append(self._missing.pop())
