"""Owns the change log files: appends commits durably, and replaces the log by a shorter one step by step.

The files are `metadata.log` and `metadata.log.new`. The log is filled with zeros beyond its end, so that an append
changes no metadata of the file system and cannot run out of space after the database has committed. A failed write or
sync is never repeated: the whole log is written again to another file instead.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from quire_bookie.env.durable import sync_data, sync_path, write_all
from quire_bookie.env.file_modes import FILE_MODE
from quire_bookie.limits import METADATA_LOG_COMMITS_BYTES_MIN, METADATA_LOG_GROWTH_BYTES, METADATA_LOG_ROWS_BYTES
from quire_bookie.metadata.local.change_format import (
    HEADER,
    Changes,
    Position,
    Value,
    checksum,
    encode_base,
    encode_frame,
    encode_header,
    encode_rows,
)

LOG_NAME: Final = "metadata.log"
NEW_LOG_NAME: Final = "metadata.log.new"


class LogFile:
    """An open file that is written at given offsets. Raises OSError."""

    def __init__(self, path: Path, *, create: bool) -> None:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_TRUNC if create else 0)
        self._descriptor = os.open(path, flags, FILE_MODE)

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`. Not durable before `sync`."""
        write_all(self._descriptor, offset, [data])

    def sync(self) -> None:
        """Make the written bytes durable."""
        sync_data(self._descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def load_log(folder: Path) -> bytes | None:
    """Return the bytes of the change log, or None if there is none. OSError."""
    try:
        return (folder / LOG_NAME).read_bytes()
    except FileNotFoundError:
        return None


class ChangeLog:
    """The change log of an open store. Used by one thread only."""

    def __init__(self, folder: Path, file: LogFile, *, base_end: int, end: int, size: int) -> None:
        """Use `open` or `LogWriter.finish`."""
        self._folder = folder
        self._file = file
        self._base_end = base_end
        self._end = end
        self._size = size
        self._bound = max(METADATA_LOG_COMMITS_BYTES_MIN, base_end)
        self._failed = False

    @classmethod
    def open(cls, folder: Path, *, base_end: int, end: int) -> "ChangeLog":
        """Open the file whose content was read and found to end at `end`. OSError."""
        path = folder / LOG_NAME
        return cls(folder, LogFile(path, create=False), base_end=base_end, end=end, size=path.stat().st_size)

    @property
    def usable(self) -> bool:
        """Whether commits may be appended; False after a failed write, until the log is written again."""
        return not self._failed

    @property
    def is_long(self) -> bool:
        """Whether the commits take more bytes than the copy of the nodes, and enough to be worth a rewrite."""
        return self._end - self._base_end > self._bound

    def postpone(self) -> None:
        """Let the log grow further before it counts as long, because a rewrite failed."""
        self._bound = self._end - self._base_end + METADATA_LOG_COMMITS_BYTES_MIN

    def reserve(self, size: int) -> None:
        """Allocate space for a frame, so that `append` needs none. OSError: no commit was appended."""
        if self._end + size <= self._size:
            return
        grown = self._end + size + METADATA_LOG_GROWTH_BYTES
        self._file.write(self._size, bytes(grown - self._size))
        try:
            self._file.sync()
        except OSError:
            self._failed = True
            raise
        self._size = grown

    def append(self, frame: bytes) -> None:
        """Append a commit; durable on return. OSError: the file must not be used any more."""
        assert not self._failed
        assert self._end + len(frame) <= self._size, "the space of a frame is reserved before the commit"
        try:
            self._file.write(self._end, frame)
            self._file.sync()
        except OSError:
            self._failed = True
            raise
        self._end += len(frame)

    def give_up(self) -> None:
        """Append nothing more: another file may have taken the name."""
        self._failed = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LogWriter:
    """Writes a new log while the old one stays valid until `finish`."""

    def __init__(self, folder: Path, store: bytes) -> None:
        self._folder = folder
        self._file = LogFile(folder / NEW_LOG_NAME, create=True)
        self._offset = 0
        self._base_end = 0
        header = encode_header(store)
        self._before = header
        self._rows: dict[bytes, Value | None] = {}
        self._rows_bytes = 0
        self._write(header)
        assert self._offset == HEADER.size

    def add(self, nodes: Iterable[tuple[bytes, int, bytes]]) -> None:
        """Add (key, version, value) tuples."""
        for key, version, value in nodes:
            self._rows[key] = (version, value)
            self._rows_bytes += len(key) + len(value)
            if self._rows_bytes >= METADATA_LOG_ROWS_BYTES:
                self._flush()

    def finish(self, position: Position, later: Iterable[bytes] = ()) -> ChangeLog:
        """Add the base and the later commits, make the file durable, and replace the old one. OSError."""
        self._flush()
        self._chained(encode_base(position))
        self._base_end = self._offset
        for frame in later:
            self._write(frame)
        end = self._offset
        self._write(bytes(METADATA_LOG_GROWTH_BYTES))
        self._file.sync()
        os.rename(self._folder / NEW_LOG_NAME, self._folder / LOG_NAME)
        sync_path(self._folder)
        assert HEADER.size < self._base_end <= end < self._offset
        return ChangeLog(self._folder, self._file, base_end=self._base_end, end=end, size=self._offset)

    def abandon(self) -> None:
        """Discard the new file; the old log stays."""
        self._file.close()
        with contextlib.suppress(OSError):  # the next open removes it
            (self._folder / NEW_LOG_NAME).unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._rows:
            rows: Changes = self._rows
            self._chained(encode_rows(rows))
            self._rows, self._rows_bytes = {}, 0

    def _chained(self, body: bytes) -> None:
        self._before = checksum(self._before, body)
        self._write(encode_frame(body, self._before))

    def _write(self, data: bytes) -> None:
        self._file.write(self._offset, data)
        self._offset += len(data)


def write_log(folder: Path, store: bytes, nodes: Iterable[tuple[bytes, int, bytes]], position: Position) -> ChangeLog:
    """Write a whole log. OSError: the old log is still in place, or the new one has replaced it."""
    writer = LogWriter(folder, store)
    try:
        writer.add(nodes)
        return writer.finish(position)
    except BaseException:
        writer.abandon()
        raise
