"""Fakes of journal, storage and connection for request handling, controlled by tests."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.errors import NoSuchEntryError, NoSuchLedgerError, TooManyRequestsError, UnknownLedgerStateError
from quire_bookie.journal import EntryRecord, ExplicitLacRecord, FenceRecord, JournalRecord, MasterKeyRecord
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, IdCounters, IdReport, LedgerId, Run, RunBatch
from quire_bookie.server.requests.bookie import Bookie
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.ports import BatchDone, Done
from quire_bookie.server.requests.traced_adds import TracedAdds
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.storage.read_cache import Extent
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.messages import Response


class FakeJournal:
    """Records appends; `settle` is the sync."""

    def __init__(self) -> None:
        self.appended: list[tuple[str, LedgerId]] = []
        self.durable: list[JournalRecord] = []
        """The records that a replay would deliver, in order."""
        self.turn_over: Callable[[], None] | None = None
        """Called after a sync: the bookie's work at the end of that loop iteration."""
        self._waiting: list[tuple[list[JournalRecord], Done]] = []
        self.group_s: tuple[float, float] | None = None
        """When the last group was submitted and became durable."""

    def append_run(self, run: Run, done: Done) -> None:
        """Append entries."""
        self.appended.append(("entries", run.ledger))
        self._waiting.append(([EntryRecord(run)], done))

    def append_batch(self, batch: RunBatch, done: BatchDone) -> None:
        """Append entries of several ledgers."""
        self.appended += [("entries", row[0]) for row in batch.rows()]
        self._waiting.append(([EntryRecord(run) for run in batch.runs()], partial(done, batch)))

    def append_master_key(self, ledger: LedgerId, key: bytes, done: Done, token: bytes) -> None:
        """Append a key, and a token."""
        self.appended.append(("token" if token else "key", ledger))
        self._waiting.append(([MasterKeyRecord(ledger, key, token)], done))

    def append_fence(self, ledger: LedgerId, done: Done) -> None:
        """Append a fence."""
        self.appended.append(("fence", ledger))
        self._waiting.append(([FenceRecord(ledger)], done))

    def append_explicit_lac(self, ledger: LedgerId, packet: bytes, done: Done) -> None:
        """Append an explicit LAC."""
        self.appended.append(("lac", ledger))
        self._waiting.append(([ExplicitLacRecord(ledger, packet)], done))

    def last_group_s(self, ledger: LedgerId) -> tuple[float, float] | None:
        """Return what a test set."""
        return self.group_s

    def start_now(self) -> None:
        """Do nothing: tests call `settle`."""

    def append_force(self, done: Done) -> None:
        """Append a force, which has nothing to replay."""
        self.appended.append(("force", LedgerId(-1)))
        self._waiting.append(([], done))

    def settle(self, *errors: BaseException | None) -> None:
        """Complete the waiting appends with these outcomes in order; the last one is for all others."""
        waiting, self._waiting = self._waiting, []
        outcomes = list(errors) or [None]
        for at, (records, done) in enumerate(waiting):
            outcome = outcomes[min(at, len(outcomes) - 1)]
            if outcome is None:
                self.durable += records
            done(outcome)
        if self.turn_over is not None:
            self.turn_over()


class FakeStorage:
    """Stores entries in a dictionary. `has_space` False refuses puts; `hidden` ledgers exist but are not in memory."""

    def __init__(self) -> None:
        self.infos: dict[LedgerId, LedgerInfo] = {}
        self.entries: dict[tuple[LedgerId, EntryId], bytes] = {}
        self.hidden: set[LedgerId] = set()
        self.new: set[LedgerId] = set()
        """The ledgers that `is_unseen` reports as absent."""
        self.lookups: list[list[LedgerId]] = []
        """The arguments of `absent_of`."""
        self.has_space = True
        self.load_error: Exception | None = None
        self.limbo: set[LedgerId] = set()
        self.cached: set[tuple[LedgerId, EntryId]] = set()
        """The entries that `read_cached` returns; all others are read by `read`."""
        self.served = 0
        self.stretches: dict[LedgerId, Extent] = {}
        """The extents that `stretch` returns."""
        self.blocked: asyncio.Event | None = None
        """While it exists and is not set, no read of one entry ends."""
        self.reads: list[tuple[LedgerId, EntryId]] = []
        self.blocked_revival: asyncio.Event | None = None
        self.revival_error: Exception | None = None
        self.flushes = 0
        self.flush_error: Exception | None = None
        self.flush_gate: asyncio.Event | None = None
        """A flush waits for it."""

    def id_report(self, ledger_known: bool | None) -> IdReport:
        """Return the highest id, without counters."""
        return IdReport(max(self.infos, default=LedgerId(-1)), LedgerId(-1), IdCounters(), ledger_known)

    def cached_ledger(self, ledger_id: LedgerId) -> LedgerInfo | None:
        """Return the state unless it is hidden."""
        return None if ledger_id in self.hidden else self.infos.get(ledger_id)

    def create_ledger(self, ledger_id: LedgerId, master_key: bytes) -> LedgerInfo:
        """Create a ledger."""
        assert ledger_id not in self.infos
        info = self.infos[ledger_id] = LedgerInfo(ledger_id, master_key)
        info.limbo = info.fenced = ledger_id in self.limbo
        return self.infos[ledger_id]

    def create_ledger_without_key(self, ledger_id: LedgerId) -> LedgerInfo:
        """Create a ledger with an unknown key."""
        info = self.create_ledger(ledger_id, b"unknown")
        info.key_unknown = True
        return info

    def restore_key(self, info: LedgerInfo, master_key: bytes) -> None:
        """Set the key."""
        info.master_key, info.key_unknown = master_key, False

    def set_token(self, info: LedgerInfo, token: bytes) -> None:
        """Set the first token."""
        assert not info.token
        info.token, info.dirty = token, True

    def put(self, info: LedgerInfo, run: Run) -> None:
        """Store entries."""
        if not self.has_space:
            raise TooManyRequestsError("no space")
        for at, body in enumerate(run.entries):
            self.entries[run.ledger, EntryId(run.first + at)] = bytes(body)
        info.last_entry = EntryId(run.first + len(run.entries) - 1)
        info.lac = max(info.lac, run.lac)

    def put_batch(self, infos: Sequence[LedgerInfo], batch: RunBatch) -> None:
        """Store entries of several ledgers."""
        for info, run in zip(infos, batch.runs(), strict=True):
            self.put(info, run)

    def fence(self, info: LedgerInfo) -> None:
        """Set the fence."""
        info.fenced = True

    def set_explicit_lac(self, info: LedgerInfo, packet: bytes, lac: EntryId) -> None:
        """Store an explicit LAC packet."""
        info.explicit_lac, info.explicit_lac_entry = packet, lac
        info.lac = max(info.lac, lac)

    def read_cached(self, info: LedgerInfo, entry: EntryId) -> Buffer | None:
        """Return the entry if a test put it into memory."""
        return self.entries[info.ledger_id, entry] if (info.ledger_id, entry) in self.cached else None

    def stretch(self, info: LedgerInfo, entry: EntryId) -> Extent | None:
        """Return the extent set by a test, if it has the entry."""
        extent = self.stretches.get(info.ledger_id)
        return extent if extent is not None and extent.holds(entry) else None

    def note_served(self, entries: int) -> None:
        """Count served entries."""
        self.served += entries

    def is_limbo(self, ledger_id: LedgerId) -> bool:
        """Whether a test put the ledger into limbo."""
        return ledger_id in self.limbo

    async def load_ledger(self, ledger_id: LedgerId, covered: EntryId = NO_ENTRY) -> LedgerInfo | None:
        """Return the state."""
        if self.load_error is not None:
            raise self.load_error
        self.hidden.discard(ledger_id)
        return self.infos.get(ledger_id)

    async def absent_of(self, ledgers: Sequence[LedgerId]) -> set[LedgerId]:
        """Return the ledgers that do not exist."""
        self.lookups.append(list(ledgers))
        if self.load_error is not None:
            raise self.load_error
        return {ledger for ledger in ledgers if ledger not in self.infos}

    def is_unseen(self, ledger: LedgerId) -> bool:
        """Whether a test put the ledger into `new`, and it was not created since."""
        return ledger in self.new and ledger not in self.infos

    async def revive_copy(self, ledger_id: LedgerId, master_key: bytes) -> bool:
        """Revive a superfluous copy without its entries, once `blocked_revival` is set."""
        if self.blocked_revival is not None:
            await self.blocked_revival.wait()
        if self.revival_error is not None:
            raise self.revival_error
        info = self.infos[ledger_id]
        if not (info.deleted and info.superfluous):
            return False
        info.deleted = info.superfluous = False
        info.master_key = master_key if info.key_unknown else info.master_key
        self.entries = {key: body for key, body in self.entries.items() if key[0] != ledger_id}
        return True

    async def read(self, ledger_id: LedgerId, entry: EntryId) -> Buffer:
        """Return one entry."""
        self.reads.append((ledger_id, entry))
        if self.blocked is not None:
            await self.blocked.wait()
        info = self.infos.get(ledger_id)
        if info is None and ledger_id in self.limbo:
            raise UnknownLedgerStateError("limbo")
        if info is None or info.deleted:
            raise NoSuchLedgerError("no ledger")
        if info.limbo and (entry == NO_ENTRY or (ledger_id, entry) not in self.entries):
            raise UnknownLedgerStateError("limbo")
        wanted = self.infos[ledger_id].last_entry if entry == NO_ENTRY else entry
        if (ledger_id, wanted) not in self.entries:
            raise NoSuchEntryError("no entry")
        return self.entries[ledger_id, wanted]

    async def read_many(self, ledger_id: LedgerId, first: EntryId, entries_max: int, bytes_max: int) -> list[Buffer]:
        """Return consecutive entries."""
        found: list[Buffer] = [await self.read(ledger_id, first)]
        while len(found) < entries_max and (ledger_id, EntryId(first + len(found))) in self.entries:
            found.append(self.entries[ledger_id, EntryId(first + len(found))])
        return found

    async def entry_ranges(self, ledger_id: LedgerId) -> list[tuple[EntryId, EntryId]]:
        """Return a range for each entry."""
        info = await self.load_ledger(ledger_id)
        if (info is None and ledger_id in self.limbo) or (info is not None and info.limbo):
            raise UnknownLedgerStateError("limbo")
        if info is None:
            raise NoSuchLedgerError("no ledger")
        return [(entry, entry) for ledger, entry in sorted(self.entries) if ledger == ledger_id]

    async def flush(self) -> None:
        """Make space."""
        self.flushes += 1
        if self.flush_gate is not None:
            await self.flush_gate.wait()
        if self.flush_error is not None:
            raise self.flush_error
        self.has_space = True


class FakeClock:
    """A wall clock that tests set."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        """Return the time set by the test."""
        return self.ms


class FakeConnection:
    """Collects the responses that would be sent."""

    def __init__(self) -> None:
        self.is_gone = False
        self.takes_answers = True
        self.drained = asyncio.Event()
        """Set when `takes_answers` must be checked again."""
        self.unanswered = 0
        self.paused = 0
        self.memory = ConnectionMemory()
        self.sent: list[bytes] = []
        self.client = "client"

    def send(self, buffers: Sequence[Buffer], answers: int = 1) -> None:
        """Collect responses."""
        self.unanswered -= answers
        if not self.is_gone:
            self.sent.append(b"".join(buffers))

    def unsent_bytes(self) -> int:
        """Return 0: the client reads at once."""
        return 0

    def close_if_answered(self) -> None:
        """Do nothing: a fake never closes."""

    async def wait_to_take_answers(self) -> None:
        """Wait until a test sets `takes_answers`."""
        while not (self.takes_answers or self.is_gone):
            self.drained.clear()
            await self.drained.wait()

    def pause(self, reason: int) -> None:
        """Add the reason."""
        self.paused |= reason

    def resume(self, reason: int) -> None:
        """Remove the reason."""
        self.paused &= ~reason

    def responses(self, generation: int = 2) -> list[Response]:
        """Return the responses since the last call."""
        sent, self.sent = self.sent, []
        return ClientCodec(generation).feed(b"".join(sent))

    @property
    def real(self) -> Connection:
        """This object, cast to the type of production code."""
        return cast(Connection, self)


def make_bookie(
    journal: FakeJournal,
    storage: FakeStorage,
    settings: ServiceSettings | None = None,
    clock: FakeClock | None = None,
    traced: TracedAdds | None = None,
) -> Bookie:
    """Return a bookie on fakes."""
    return Bookie(
        journal,
        storage,
        settings or ServiceSettings(),
        disk_space=lambda: (1000, 400),
        on_disk_full=lambda: None,
        clock=clock or FakeClock(),
        traced=traced,
    )
