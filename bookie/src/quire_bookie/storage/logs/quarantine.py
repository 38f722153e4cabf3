"""Quarantine of entry logs that are damaged as files: missing, with a damaged header, or with an unreadable map.

Owns the list, and a small text file beside the logs that records since when. The logs in the file are checked again at
each start; a log that is intact again leaves the list. Never deletes a log: its intact records are still read.

    file    first line `quire quarantine 1`, then a line for each log: `<16 hex digits> <ms since the epoch> <reason>`
            Lines that do not parse are skipped: the log's damage is found again.
"""

import logging

from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.errors import DiskFullError

_log = logging.getLogger("quire.storage.quarantine")
_HEAD = "quire quarantine 1"


@dataclass(frozen=True, slots=True)
class QuarantinedLog:
    """One log. `since_ms` is wall-clock time in milliseconds."""

    log: int
    path: str
    reason: str
    since_ms: int


class Quarantine:
    """Tracks the quarantined logs of one storage."""

    def __init__(self, disk: Disk, path: str, clock: WallClock) -> None:
        self._disk = disk
        self._path = path
        self._clock = clock
        self._logs: dict[int, QuarantinedLog] = {}
        self._since_ms: dict[int, int] = {}
        self._unsaved = False

    async def load(self) -> list[int]:
        """Return the logs that were in quarantine when this storage was last open; the caller checks them again."""
        if await self._disk.exists(self._path):
            content = await self._disk.read_file(self._path)
            for line in content.decode("utf-8", "replace").splitlines()[1:]:
                words = line.split(" ", 2)
                try:
                    self._since_ms[int(words[0], 16)] = int(words[1])
                except (ValueError, IndexError):
                    _log.warning("%s: skipped a line that does not parse", self._path)
        return sorted(self._since_ms)

    def __contains__(self, log: int) -> bool:
        return log in self._logs

    def __len__(self) -> int:
        return len(self._logs)

    def logs(self) -> list[QuarantinedLog]:
        """Return all quarantined logs, by number."""
        return [self._logs[log] for log in sorted(self._logs)]

    def add(self, log: int, path: str, reason: str) -> bool:
        """Add a log. False if it is already in quarantine."""
        if log in self._logs:
            return False
        since_ms = self._since_ms.get(log) or self._clock.now_ms()
        self._logs[log] = QuarantinedLog(log, path, " ".join(reason.split()), since_ms)
        self._unsaved = self._unsaved or log not in self._since_ms
        _log.error("entry log %d is in quarantine: %s", log, reason)
        return True

    def discard(self, log: int) -> None:
        """Remove a log that is gone, or intact again."""
        self._unsaved = (self._logs.pop(log, None) is not None) or self._unsaved
        self._unsaved = (self._since_ms.pop(log, None) is not None) or self._unsaved

    async def save(self) -> None:
        """Write the list if it changed. Without space it stays in memory; the next start finds the damage again."""
        if not self._unsaved:
            return
        lines = [_HEAD, *(f"{each.log:016x} {each.since_ms} {each.reason}" for each in self.logs())]
        try:
            await self._disk.replace_file(self._path, ("\n".join(lines) + "\n").encode())
        except DiskFullError as error:
            _log.warning("no space to store the list of quarantined logs: %s", error)
            return
        self._unsaved = False
        self._since_ms = {each.log: each.since_ms for each in self._logs.values()}
