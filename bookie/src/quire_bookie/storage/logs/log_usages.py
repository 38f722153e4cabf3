"""Tracks how much live data each sealed entry log holds. Never deletes or moves anything.

A log's map has the bytes of records per ledger. Those of live ledgers are kept per log as two arrays, at most
`lines_max` lines over all logs (16 bytes each); deletions are subtracted in memory. Logs beyond the bound are looked up
again after ledgers were deleted. Entries that were stored again count in both of their logs: the result is an upper
bound of the live data.
"""

from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import DamagedError
from quire_bookie.limits import LOG_USAGE_LINES_MAX
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.log_catalog import LogState
from quire_bookie.storage.formats.log_format import LedgerMap

LEDGERS_PER_GET = 256
"""State lookups in one request to the index: more would delay reads."""


@dataclass(frozen=True, slots=True)
class LogUsage:
    """Bytes of records in one sealed log: all, and those of live ledgers. `file_bytes`: with padding."""

    log: int
    live_bytes: int
    total_bytes: int
    file_bytes: int

    @property
    def share(self) -> float:
        """The live fraction, 0 to 1; 0 for a log without records."""
        return self.live_bytes / self.total_bytes if self.total_bytes else 0.0


class SealedLogs(Protocol):
    """The part of `EntryLogs` that is needed here."""

    def sealed(self) -> list[LogState]:
        """Return the states of the sealed logs that are not in quarantine."""
        ...

    async def read_map(self, log: int, /) -> LedgerMap:
        """Return the checksummed map of a sealed log. DamagedError."""
        ...


FindLive = Callable[[Sequence[LedgerId]], Awaitable[set[LedgerId]]]
"""Returns those of some ledgers that are live, or may be because their state cannot be read."""


@dataclass(slots=True)
class _Lines:
    ledgers: "array[int]"
    sizes: "array[int]"


class LogUsages:
    """Owns the usages of the sealed logs."""

    def __init__(self, logs: SealedLogs, find_live: FindLive, lines_max: int = LOG_USAGE_LINES_MAX) -> None:
        self._logs = logs
        self._find_live = find_live
        self._lines_max = lines_max
        self._usages: dict[int, LogUsage] = {}
        self._lines: dict[int, _Lines] = {}
        self._lines_kept = 0
        self._deleted: set[LedgerId] = set()
        self.unreadable: set[int] = set()
        """Logs whose map is damaged; they are not compacted."""

    def note_deleted(self, ledger: LedgerId) -> None:
        """Record a deleted ledger, for the next `refresh`."""
        self._deleted.add(ledger)

    @property
    def known(self) -> list[LogUsage]:
        """The result of the last refresh, ascending by log."""
        return [self._usages[log] for log in sorted(self._usages)]

    async def refresh(self) -> list[LogUsage]:
        """Update the usages; return all, ascending by log. StorageError if the index fails."""
        deleted, self._deleted = self._deleted, set()
        try:
            sealed = {state.log: state.durable_bytes for state in self._logs.sealed()}
            for log in [log for log in self._usages if log not in sealed]:
                self._forget(log)
            self.unreadable &= sealed.keys()
            for log, size in sorted(sealed.items()):
                if log in self._lines:
                    if deleted:
                        self._subtract(log, deleted)
                elif log not in self.unreadable and (log not in self._usages or deleted):
                    await self._look_up(log, size)
        except BaseException:
            self._deleted |= deleted  # counted by the next refresh; counting a ledger twice has no effect
            raise
        return self.known

    def _forget(self, log: int) -> None:
        del self._usages[log]
        lines = self._lines.pop(log, None)
        if lines is not None:
            self._lines_kept -= len(lines.ledgers)
            assert self._lines_kept >= 0

    def _subtract(self, log: int, deleted: Iterable[LedgerId]) -> None:
        lines, usage = self._lines[log], self._usages[log]
        live = usage.live_bytes
        for ledger in deleted:
            at = bisect_left(lines.ledgers, ledger)
            if at < len(lines.ledgers) and lines.ledgers[at] == ledger:
                live -= lines.sizes[at]
                lines.sizes[at] = 0
        assert 0 <= live <= usage.live_bytes, "a deletion never adds live data"
        self._usages[log] = LogUsage(log, live, usage.total_bytes, usage.file_bytes)

    async def _look_up(self, log: int, file_bytes: int) -> None:
        try:
            spans = await self._logs.read_map(log)
        except DamagedError:
            self.unreadable.add(log)
            return
        except KeyError:
            return  # removed in the meantime
        ledgers = sorted(spans)
        lines = _Lines(array("q"), array("q"))
        for start in range(0, len(ledgers), LEDGERS_PER_GET):
            part = ledgers[start : start + LEDGERS_PER_GET]
            alive = await self._find_live(part)
            live = [ledger for ledger in part if ledger in alive]
            lines.ledgers.extend(live)
            lines.sizes.extend([spans[ledger].size_bytes for ledger in live])
        total = sum(span.size_bytes for span in spans.values())
        assert len(lines.ledgers) == len(lines.sizes) and sum(lines.sizes) <= total
        self._usages[log] = LogUsage(log, sum(lines.sizes), total, file_bytes)
        if self._lines_kept + len(lines.ledgers) <= self._lines_max:
            self._lines[log] = lines
            self._lines_kept += len(lines.ledgers)
