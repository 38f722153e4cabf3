"""The compaction of one topic: its runs, the state of the last one, and the compacted ledger in use.

A run that is stopped, by an unload or a crash, leaves the former compacted ledger in use.
"""

import asyncio
import logging

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.env.clock import WallClock
from quire_bookie.env.side_thread import SideThread
from quire_bookie.errors import NoSuchLedgerError, PeerProtocolError, QuireError
from quire_bookie.model import LedgerId, LedgerState
from quire_broker.compaction.compacted_output import custom_of
from quire_broker.compaction.compacted_reader import CompactedReader
from quire_broker.compaction.compactor import Compactor, Outcome
from quire_broker.errors import CompactionError, ConflictError
from quire_broker.limits import COMPACTIONS_AT_ONCE
from quire_broker.managed_ledger.backlog_size import bytes_after
from quire_broker.managed_ledger.compacted_ledgers import Compacted
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.position import Position
from quire_broker.names import TopicName
from quire_broker.settings.compaction import CompactionSettings

NO_LEDGER = -1
"""Stands for the compacted ledger of a topic that has none."""
log = logging.getLogger("quire.broker.compaction")


class Compactions:
    """What the compactions of one broker share."""

    def __init__(self, settings: CompactionSettings, clock: WallClock) -> None:
        self.settings = settings
        self.clock = clock
        self.turns = asyncio.Semaphore(COMPACTIONS_AT_ONCE)
        self.thread = SideThread("compaction")


@dataclass(slots=True)
class CompactionStats:
    """The last run since the topic was loaded, in Pulsar's words. Times are ms since the epoch, 0: never.

    `read_bytes` and `kept_bytes` are those of the last run that wrote a ledger. `successes`, `failures` and
    `removed_in_all` count all runs.
    """

    status: str = "NOT_RUN"
    last_error: str = ""
    removed_messages: int = 0
    succeeded_ms: int = 0
    failed_ms: int = 0
    duration_ms: int = 0
    successes: int = 0
    failures: int = 0
    removed_in_all: int = 0
    read_bytes: int = 0
    kept_bytes: int = 0

    def per_s(self, size_bytes: int) -> float:
        """Return bytes of the last run as bytes per second."""
        return size_bytes * 1000 / self.duration_ms if self.duration_ms else 0.0


class TopicCompaction:
    """Compacts one topic."""

    def __init__(self, topic: TopicName, ledger: ManagedLedger, shared: Compactions, background: Background) -> None:
        self.stats = CompactionStats()
        self._topic = topic
        self._ledger = ledger
        self._shared = shared
        self._background = background
        self._reader: CompactedReader | None = None
        self._run: asyncio.Task[None] | None = None
        self._adopting = False
        self._made: Outcome | None = None
        """The last run that wrote a ledger."""

    @property
    def reader(self) -> CompactedReader | None:
        """Reads the compacted ledger in use; None if there is none."""
        current, reader = self._ledger.compacted.current, self._reader
        if reader is None or reader.of != current:
            if reader is not None:
                self._background.start(reader.close(), f"closing compacted ledger {reader.of.ledger_id}")
            reader = self._reader = None if current is None else CompactedReader(self._ledger.compacted, current)
        return reader

    @property
    def running(self) -> bool:
        """Whether the topic is being compacted, waits for its turn, or takes over the ledger of a job."""
        return self._run is not None or self._adopting

    @property
    def was_used(self) -> bool:
        """Whether the topic has a compacted ledger, or a compaction has ended since it was loaded."""
        return self.stats.successes + self.stats.failures > 0 or self._ledger.compacted.current is not None

    @property
    def size(self) -> tuple[int, int]:
        """Entries and bytes of the compacted ledger in use; zeros until a run here wrote it, or a client read it."""
        reader, made = self.reader, self._made
        if reader is None:
            return 0, 0
        if made is not None and made.ledger_id == reader.of.ledger_id:
            return made.kept, made.kept_bytes
        return reader.known_size

    @property
    def pending_bytes(self) -> int:
        """Bytes that were added since the last compaction; all stored bytes before the first."""
        current = self._ledger.compacted.current
        return bytes_after(self._ledger.ledgers, Position(-1, -1) if current is None else current.horizon)

    # ---- runs
    def start(self) -> None:
        """Compact the topic in the background. ConflictError while that is already done."""
        if self.running:
            raise ConflictError("Compaction already in progress")
        self.stats.status, self.stats.last_error = "RUNNING", ""
        self._run = self._background.spawn(self._compact(), f"compaction of {self._topic}")
        self._run.add_done_callback(self._ended)

    async def _compact(self) -> None:
        shared, stats = self._shared, self.stats
        async with shared.turns:
            begun_ms = shared.clock.now_ms()
            compactor = Compactor(self._topic, self._ledger, self.reader, shared.settings, shared.thread)
            outcome = await compactor.run()
        stats.succeeded_ms = shared.clock.now_ms()
        stats.duration_ms = stats.succeeded_ms - begun_ms
        if outcome is not None:
            self._made = outcome
            stats.removed_messages = outcome.removed
            stats.removed_in_all += outcome.removed
            stats.read_bytes, stats.kept_bytes = outcome.read_bytes, outcome.kept_bytes
            log.info(
                "compacted %s: %d of %d entries up to %s are in ledger %d, with the latest messages of %d keys",
                self._topic,
                outcome.kept,
                outcome.read,
                outcome.horizon,
                outcome.ledger_id,
                outcome.keys,
            )

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._run = None
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            self.stats.status = "SUCCESS"
            self.stats.successes += 1
            return
        self.stats.failures += 1
        self.stats.failed_ms = self._shared.clock.now_ms()
        self.stats.status = "ERROR"
        if error is None:
            self.stats.last_error = "stopped: the topic was unloaded"
        else:
            self.stats.last_error = str(error) if isinstance(error, QuireError) else f"{type(error).__name__}: {error}"

    # ---- ledgers that a job wrote
    async def adopt(self, ledger_id: LedgerId, horizon: Position, former: int) -> None:
        """Put the closed compacted ledger of a job into use. A repetition for the ledger in use changes nothing.

        `former`: the compacted ledger that the job read, -1 for none. ConflictError with the reason: the ledger is not
        used, and its record deletes it. Errors of client and store: unknown.
        """
        if self.running:
            raise ConflictError(f"{self._topic} is being compacted: run the job again afterwards")
        self._adopting = True
        try:
            if self._ledger.compacted.current != Compacted(horizon, ledger_id):
                await self._adopt(Compacted(horizon, ledger_id), former)
        finally:
            self._adopting = False

    async def _adopt(self, made: Compacted, former: int) -> None:
        compacted = self._ledger.compacted
        await compacted.hold()
        try:
            self._check_place(made.horizon, former)
            await self._check_ledger(made)
            try:
                await compacted.record(LedgerId(made.ledger_id), made.horizon)
            except CompactionError as error:
                raise ConflictError(str(error)) from error
        finally:
            compacted.release()
        self.stats.status, self.stats.last_error = "SUCCESS", ""
        self.stats.successes += 1
        self.stats.succeeded_ms = self._shared.clock.now_ms()
        log.info("compacted %s up to %s: a job wrote ledger %d", self._topic, made.horizon, made.ledger_id)

    def _check_place(self, horizon: Position, former: int) -> None:
        current = self._ledger.compacted.current
        used = NO_LEDGER if current is None else current.ledger_id
        if used != former:
            raise ConflictError(
                f"the compacted ledger of {self._topic} is {used}, the job read {former}: a newer compaction wins; run "
                "the job again"
            )
        if current is not None and horizon <= current.horizon:
            raise ConflictError(f"{self._topic} is already compacted up to {current.horizon}, beyond {horizon}")
        record = next((each for each in self._ledger.ledgers if each.ledger_id == horizon.ledger_id), None)
        ended = record is None or (record.closed_ms and horizon.entry_id >= record.entries)
        if ended or horizon.entry_id < 0 or horizon > self._ledger.last_confirmed:
            raise ConflictError(f"{self._topic} has no entry {horizon}: run the job again")

    async def _check_ledger(self, made: Compacted) -> None:
        """Raise ConflictError unless a job wrote and closed this ledger for this topic and horizon."""
        reader = CompactedReader(self._ledger.compacted, made)
        try:
            metadata = await reader.metadata()
            expected = custom_of(self._topic, made.horizon).items()
            if any(metadata.custom.get(key) != value for key, value in expected):
                raise ConflictError(
                    f"ledger {made.ledger_id} is no compacted ledger of {self._topic} up to {made.horizon}"
                )
            if metadata.state is not LedgerState.CLOSED:
                raise ConflictError(f"ledger {made.ledger_id} is {metadata.state.name}: close it first")
            last = await reader.last()
        except NoSuchLedgerError as error:
            raise ConflictError(f"ledger {made.ledger_id} does not exist: run the job again") from error
        except PeerProtocolError as error:
            raise ConflictError(f"ledger {made.ledger_id}: {error}") from error
        finally:
            await reader.close()
        if last is not None and last.position > made.horizon:
            raise ConflictError(f"ledger {made.ledger_id} ends at {last.position}, beyond its horizon {made.horizon}")

    async def stop(self) -> None:
        """Cancel a run, and release the compacted ledger."""
        if self._run is not None:
            self._run.cancel()
            await asyncio.wait([self._run])
        if self._reader is not None:
            reader, self._reader = self._reader, None
            await reader.close()
