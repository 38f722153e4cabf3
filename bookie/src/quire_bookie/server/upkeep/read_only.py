"""Tracks why a bookie is read-only: a set of reasons, each added and removed only by its own source.

Owns the reasons and the administrator's request on disk. The disk monitor never removes the administrator's reason, nor
the administrator that of a full disk. Never checks disks itself, and never decides about single requests.

The administrator's request is a file in a ledger folder, `read-only.operator`. Its presence in any folder counts,
whatever its content: damage to it cannot make a bookie writable that an administrator took out of service.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Final

from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import DirectoryLock, Disk
from quire_bookie.errors import StartupError, StorageError

_log = logging.getLogger("quire.server.read_only")
WISH_NAME: Final = "read-only.operator"


class ReadOnlyReason(Enum):
    """The source of a reason."""

    DISK = "disk"
    """No folder takes new entry logs, or the journal has no space."""
    OPERATOR = "operator"
    """Requested by an administrator; survives restarts."""
    FORCED = "forced"
    """Configured (`forceReadOnlyBookie`); ends only with another configuration."""


class ReadOnlyMode:
    """Tracks the reasons of one running bookie. `apply` is called when a reason was added or removed."""

    def __init__(
        self, disk: Disk, folders: Sequence[str], clock: WallClock, apply: Callable[[], Awaitable[None]]
    ) -> None:
        self._disk = disk
        self._folders = tuple(folders)
        self._clock = clock
        self._apply = apply
        self._reasons: set[ReadOnlyReason] = set()
        self.disk_accepts_high_priority = True
        """Set from the disk monitor."""

    @property
    def accepts_high_priority(self) -> bool:
        """Whether adds with high priority are accepted while read-only: unless full disks have no space for them."""
        return ReadOnlyReason.DISK not in self._reasons or self.disk_accepts_high_priority

    @property
    def reasons(self) -> frozenset[ReadOnlyReason]:
        """The current reasons; the bookie is writable without any."""
        return frozenset(self._reasons)

    @property
    def on(self) -> bool:
        """Whether there is a reason."""
        return bool(self._reasons)

    async def load(self, *, forced: bool) -> None:
        """Load the reasons that hold from the start on; nothing is applied."""
        if forced:
            self._reasons.add(ReadOnlyReason.FORCED)
        if await operator_wish(self._disk, self._folders):
            self._reasons.add(ReadOnlyReason.OPERATOR)
        if self._reasons:
            _log.warning("the bookie starts read-only: %s", self.describe())

    def note_at_start(self, reason: ReadOnlyReason) -> None:
        """Add a reason before the bookie is registered; the caller applies it."""
        self._reasons.add(reason)
        _log.warning("the bookie starts read-only: %s", self.describe())

    async def set(self, reason: ReadOnlyReason, on: bool) -> None:
        """Add or remove a reason, and apply the change. Return once the metadata store has it.

        The administrator's reason is written to disk before it applies, and removed from disk before it ends: OSError
        or DiskFullError if that fails. If it could not be written, it still applies in memory, until the next start.
        """
        changed = on and reason not in self._reasons
        if on:
            self._reasons.add(reason)
        try:
            if reason is ReadOnlyReason.OPERATOR:
                await write_operator_wish(self._disk, self._folders, on, self._clock)
            if not on:
                changed = reason in self._reasons
                self._reasons.discard(reason)
        finally:
            if changed:
                _log.warning("the bookie is %s", f"read-only: {self.describe()}" if self.on else "writable again")
                await self._apply()

    def describe(self) -> str:
        """Return the names of the reasons, sorted."""
        return ", ".join(sorted(reason.value for reason in self._reasons))


async def operator_wish(disk: Disk, folders: Sequence[str]) -> bool:
    """Whether a file in the folders requests read-only on behalf of an administrator."""
    for folder in folders:
        if await disk.exists(f"{folder}/{WISH_NAME}"):
            return True
    return False


async def write_operator_wish(disk: Disk, folders: Sequence[str], on: bool, clock: WallClock) -> None:
    """Write the request durably to the first folder that accepts it, or remove it from all. OSError, DiskFullError."""
    if not on:
        for folder in folders:
            if await disk.exists(f"{folder}/{WISH_NAME}"):
                await disk.remove(f"{folder}/{WISH_NAME}")
                await disk.sync_dir(folder)
        return
    if await operator_wish(disk, folders):
        return
    content = f"quire read-only 1\nasked for by an operator at {clock.now_ms()} ms since the epoch\n".encode()
    failed: Exception | None = None
    for folder in folders:
        try:
            await disk.replace_file(f"{folder}/{WISH_NAME}", content)
            return
        except (OSError, StorageError) as error:
            failed = error
    assert failed is not None
    raise failed


async def set_stopped_read_only(disk: Disk, folders: Sequence[str], on: bool, clock: WallClock) -> None:
    """Write or remove the administrator's request in the ledger folders of a stopped bookie.

    StartupError: the bookie runs (use its HTTP API then), or the folders do not belong to a bookie. OSError.
    """
    locks: list[DirectoryLock] = []
    try:
        for folder in folders:
            if not await disk.exists(f"{folder}/current/VERSION"):
                raise StartupError(f"{folder} is not a ledger folder of a bookie")
            try:
                locks.append(disk.lock_dir(f"{folder}/current"))  # as a running bookie does
            except BlockingIOError as error:
                raise StartupError(
                    f"{folder} is in use: the bookie runs; ask it over HTTP (--http http://host:port)"
                ) from error
        await write_operator_wish(disk, folders, on, clock)
    finally:
        for lock in locks:
            lock.release()
