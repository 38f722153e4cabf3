"""Schedules the compaction of entry logs: selects logs, starts and suspends runs. The storage does the work.

Owns the two intervals, suspensions and the figures of the last runs. A *minor* compaction selects logs that are almost
empty, a *major* one also those that are partly empty; emptiest first, since they free the most space for the least
work. Never runs two at once. On a disk that is almost full, major compaction is suspended; on a full one both are,
because a copy needs space before it frees any. With `force_when_no_space` a full disk starts a compaction instead,
within the space that storage reserves for it.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from quire_bookie import limits
from quire_bookie.dataclass import dataclass
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import StorageError
from quire_bookie.server.upkeep.compaction_pace import LatencyWatch, RatePace
from quire_bookie.settings.compaction import CompactionSettings, Kind
from quire_bookie.storage.compaction import Pace
from quire_bookie.storage.logs.log_usages import LogUsage

_log = logging.getLogger("quire.server.compaction")


class DiskPressure(Enum):
    """How full the fullest ledger folder is."""

    NONE = "none"
    ALMOST_FULL = "almost full"
    FULL = "full"


class CompactableStorage(Protocol):
    """The methods of `storage.compaction.Compaction` that the schedule uses."""

    async def usages_now(self) -> list[LogUsage]:
        """Return the usage of the sealed logs."""
        ...

    async def compact(self, logs: Sequence[int], pace: Pace, /) -> int:
        """Copy the live entries out of logs and remove the logs; return the bytes freed."""
        ...


@dataclass(slots=True)
class CompactionScheduleStats:
    """Counters for the metrics collector."""

    minor_runs: int = 0
    major_runs: int = 0
    failed_runs: int = 0
    pauses: int = 0
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The fields that BookKeeper's admin API shows. Times in ms since the epoch; 0: never."""

    force_compacting: bool
    major_compacting: bool
    minor_compacting: bool
    last_major_compaction_time_ms: int
    last_minor_compaction_time_ms: int
    major_compaction_counter: int
    minor_compaction_counter: int


def chosen_logs(usages: Sequence[LogUsage], threshold: float) -> list[int]:
    """Return logs with a live share below `threshold`, emptiest first, then oldest first."""
    taken = [usage for usage in usages if usage.share < threshold]
    return [usage.log for usage in sorted(taken, key=lambda usage: (usage.share, usage.log))]


class CompactionSchedule:
    """Schedules the compactions of one bookie."""

    def __init__(
        self,
        storage: CompactableStorage,
        settings: CompactionSettings,
        clock: WallClock,
        *,
        pressure: Callable[[], DiskPressure],
        latencies: LatencyWatch,
    ) -> None:
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._pressure = pressure
        self._latencies = latencies
        self._suspended: set[Kind] = set()
        self._forced: set[Kind] = set()
        self._wanted = asyncio.Event()
        self._running: Kind | None = None
        self._running_forced = False
        self._last_s: dict[Kind, float] = {}
        self._last_rescue_s: float | None = None
        self._last_ms = {Kind.MINOR: 0, Kind.MAJOR: 0}
        self.stats = CompactionScheduleStats()

    # ---- for administrators
    def suspend(self, *, minor: bool = False, major: bool = False) -> None:
        """Start no run of these kinds until `resume`, and end a running one after its current batch."""
        self._suspended |= _kinds(minor, major)

    def resume(self, *, minor: bool = False, major: bool = False) -> None:
        """Let these kinds run again when they are due."""
        self._suspended -= _kinds(minor, major)
        self._wanted.set()

    def is_suspended(self, kind: Kind) -> bool:
        """Whether an administrator suspended this kind."""
        return kind in self._suspended

    def force(self, *, minor: bool = False, major: bool = False) -> None:
        """Run these kinds as soon as possible, even if suspended or not due."""
        self._forced |= _kinds(minor, major)
        self._wanted.set()

    def status(self) -> CompactionStatus:
        """Return the status for `gc_details` of the admin API."""
        return CompactionStatus(
            force_compacting=bool(self._forced) or self._running_forced,
            major_compacting=self._running is Kind.MAJOR,
            minor_compacting=self._running is Kind.MINOR,
            last_major_compaction_time_ms=self._last_ms[Kind.MAJOR],
            last_minor_compaction_time_ms=self._last_ms[Kind.MINOR],
            major_compaction_counter=self.stats.major_runs,
            minor_compaction_counter=self.stats.minor_runs,
        )

    # ---- running
    async def run(self) -> None:
        """Compact until cancelled. A failed run is logged; the next one tries again."""
        now_s = asyncio.get_running_loop().time()
        self._last_s = {Kind.MINOR: now_s, Kind.MAJOR: now_s}
        try:
            await self._storage.usages_now()  # now, so that the first run can begin at once
        except (StorageError, OSError) as error:
            _log.warning("could not determine the usage of entry logs yet: %s", error)
        while True:
            await self._pause()
            try:
                await self.run_due()
            except (StorageError, OSError) as error:
                self.stats.failed_runs += 1
                _log.warning("compaction ended early: %s", error)

    async def run_due(self) -> Kind | None:
        """Run a forced or due compaction, if any; return its kind. StorageError, OSError as `compact`."""
        due = self._due()
        if due is None:
            return None
        kind, forced = due
        self._forced.discard(kind)
        await self._run(kind, forced=forced)
        return kind

    def _due(self) -> tuple[Kind, bool] | None:
        """Return the kind to run now, and whether an administrator or a full disk forces it."""
        for kind in (Kind.MAJOR, Kind.MINOR):
            if kind in self._forced:
                return kind, True
        settings, now_s = self._settings, asyncio.get_running_loop().time()
        pressure = self._pressure()
        if pressure is DiskPressure.FULL and settings.force_when_no_space:
            if self._last_rescue_s is None or now_s - self._last_rescue_s >= limits.COMPACTION_TICK_S:
                self._last_rescue_s = now_s
                return Kind.MAJOR if settings.major_threshold > 0 else Kind.MINOR, True
            return None
        for kind in (Kind.MAJOR, Kind.MINOR):
            if not settings.enabled(kind) or self._stopped(kind, pressure):
                continue
            if now_s - self._last_s.setdefault(kind, now_s) >= settings.interval_s(kind):
                return kind, False
        return None

    def _stopped(self, kind: Kind, pressure: DiskPressure) -> bool:
        if kind in self._suspended or pressure is DiskPressure.FULL:
            return True
        return kind is Kind.MAJOR and pressure is DiskPressure.ALMOST_FULL

    async def _run(self, kind: Kind, *, forced: bool) -> None:
        settings, loop = self._settings, asyncio.get_running_loop()
        start_s = loop.time()
        budget_s = settings.time_max_s(kind)
        pace = RatePace(
            rate=settings.rate_bytes_s if settings.throttle_by_bytes else settings.rate_entries_s,
            by_bytes=settings.throttle_by_bytes,
            until_s=start_s + budget_s if budget_s > 0 else None,
            stop=lambda: not forced and self._stopped(kind, self._pressure()),
            slow=lambda: self._latencies.is_slow(loop.time()),
        )
        assert self._running is None, "one compaction at a time"
        self._latencies.begin(start_s)
        self._running, self._running_forced = kind, forced
        try:
            logs = chosen_logs(await self._storage.usages_now(), settings.threshold(kind))
            freed = await self._storage.compact(logs, pace) if logs else 0
        finally:
            self._running, self._running_forced = None, False
            self._note_run(kind, loop.time())
            self.stats.pauses += pace.pauses
        self.stats.freed_bytes += max(0, freed)
        if logs:
            _log.info(
                "%s compaction of %d entry logs freed %d bytes in %.1f s", kind.value, len(logs), freed,
                loop.time() - start_s,
            )  # fmt: skip

    def _note_run(self, kind: Kind, now_s: float) -> None:
        self._last_s[kind] = now_s
        self._last_ms[kind] = self._clock.now_ms()
        if kind is Kind.MAJOR:
            self._last_s[Kind.MINOR] = now_s  # a major run includes the logs of a minor one
            self.stats.major_runs += 1
        else:
            self.stats.minor_runs += 1

    def _tick_s(self) -> float:
        settings = self._settings
        intervals = [settings.interval_s(kind) for kind in Kind if settings.enabled(kind)]
        return min([limits.COMPACTION_TICK_S, *intervals])

    async def _pause(self) -> None:
        if self._forced:  # both kinds were forced together, and one has run
            return
        try:
            async with asyncio.timeout(self._tick_s()):
                await self._wanted.wait()
        except TimeoutError:
            return
        self._wanted.clear()


def _kinds(minor: bool, major: bool) -> set[Kind]:
    return {kind for kind, named in ((Kind.MINOR, minor), (Kind.MAJOR, major)) if named}
