"""Why a bookie takes no normal adds: a set of reasons, each set and lifted only by whom it belongs to.

Owns the reasons and the operator's wish on disk. A full disk never lifts what an operator asked for, and an operator
never talks a full disk away. Never looks at disks itself, and never decides about single requests.

The operator's wish is a file in a ledger folder, `read-only.operator`; its presence in any of the folders is the wish,
whatever it contains: damage to it cannot make a bookie writable that a person took out of service.
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
    """Who wants it."""

    DISK = "disk"
    """No folder takes new entry logs, or the journal has no space."""
    OPERATOR = "operator"
    """A person asked for it; kept over restarts."""
    FORCED = "forced"
    """The configuration says so (`forceReadOnlyBookie`); lifted by another configuration only."""


class ReadOnlyMode:
    """The reasons of one running bookie. `apply` is called whenever whether there is one has changed."""

    def __init__(
        self, disk: Disk, folders: Sequence[str], clock: WallClock, apply: Callable[[], Awaitable[None]]
    ) -> None:
        self._disk = disk
        self._folders = tuple(folders)
        self._clock = clock
        self._apply = apply
        self._reasons: set[ReadOnlyReason] = set()
        self.disk_accepts_high_priority = True
        """The disk monitor's word."""

    @property
    def accepts_high_priority(self) -> bool:
        """Whether adds with high priority are taken all the same: always, unless full disks have no room for them."""
        return ReadOnlyReason.DISK not in self._reasons or self.disk_accepts_high_priority

    @property
    def reasons(self) -> frozenset[ReadOnlyReason]:
        """All reasons at the moment; none: the bookie is writable."""
        return frozenset(self._reasons)

    @property
    def on(self) -> bool:
        """Whether there is a reason."""
        return bool(self._reasons)

    async def load(self, *, forced: bool) -> None:
        """What holds from the start on, before anything is applied."""
        if forced:
            self._reasons.add(ReadOnlyReason.FORCED)
        if await operator_wish(self._disk, self._folders):
            self._reasons.add(ReadOnlyReason.OPERATOR)
        if self._reasons:
            _log.warning("the bookie starts read-only: %s", self.describe())

    def note_at_start(self, reason: ReadOnlyReason) -> None:
        """A reason that holds before the bookie is registered: the caller applies it."""
        self._reasons.add(reason)
        _log.warning("the bookie starts read-only: %s", self.describe())

    async def set(self, reason: ReadOnlyReason, on: bool) -> None:
        """Give a reason or take it back, and apply it. Returns once the metadata store knows.

        The operator's is on disk before it is applied, and gone from there before it is lifted: OSError or
        DiskFullError when that fails. In memory a wish for read-only holds all the same, until the next start.
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
        """The reasons in words, sorted."""
        return ", ".join(sorted(reason.value for reason in self._reasons))


async def operator_wish(disk: Disk, folders: Sequence[str]) -> bool:
    """Whether an operator asked for read-only, by the files of a bookie."""
    for folder in folders:
        if await disk.exists(f"{folder}/{WISH_NAME}"):
            return True
    return False


async def write_operator_wish(disk: Disk, folders: Sequence[str], on: bool, clock: WallClock) -> None:
    """Make the wish durable: in one folder that takes it, or gone from all. OSError, DiskFullError."""
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
    """Note or lift the operator's wish in the ledger folders of a bookie that is not running.

    StartupError: the bookie runs (ask it over HTTP then), or the folders are no bookie's. OSError.
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
