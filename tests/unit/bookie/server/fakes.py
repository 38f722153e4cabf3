"""Journal, storage and connection as request handling sees them, all in the hands of a test."""

from collections.abc import Sequence
from typing import cast

from quire_bookie.errors import NoSuchEntryError, NoSuchLedgerError, TooManyRequestsError
from quire_bookie.journal import EntryRecord, ExplicitLacRecord, FenceRecord, JournalRecord, MasterKeyRecord
from quire_bookie.model import NO_ENTRY, Buffer, EntryId, LedgerId, Run
from quire_bookie.server.bookie import Bookie
from quire_bookie.server.connections import Connection
from quire_bookie.server.ports import Done
from quire_bookie.server.settings import ServiceSettings
from quire_bookie.storage.ledger_states import LedgerInfo
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.messages import Response


class FakeJournal:
    """Remembers what was appended; `settle` is the sync."""

    def __init__(self) -> None:
        self.appended: list[tuple[str, LedgerId]] = []
        self.durable: list[JournalRecord] = []
        """What a replay would deliver, in order."""
        self._waiting: list[tuple[JournalRecord, Done]] = []

    def append_run(self, run: Run, done: Done) -> None:
        """Entries."""
        self.appended.append(("entries", run.ledger))
        self._waiting.append((EntryRecord(run), done))

    def append_master_key(self, ledger: LedgerId, key: bytes, done: Done) -> None:
        """A key."""
        self.appended.append(("key", ledger))
        self._waiting.append((MasterKeyRecord(ledger, key), done))

    def append_fence(self, ledger: LedgerId, done: Done) -> None:
        """A fence."""
        self.appended.append(("fence", ledger))
        self._waiting.append((FenceRecord(ledger), done))

    def append_explicit_lac(self, ledger: LedgerId, packet: bytes, done: Done) -> None:
        """An explicit LAC."""
        self.appended.append(("lac", ledger))
        self._waiting.append((ExplicitLacRecord(ledger, packet), done))

    def settle(self, *errors: BaseException | None) -> None:
        """End what waits: with the given outcomes in order, the last one for all the rest."""
        waiting, self._waiting = self._waiting, []
        outcomes = list(errors) or [None]
        for at, (record, done) in enumerate(waiting):
            outcome = outcomes[min(at, len(outcomes) - 1)]
            if outcome is None:
                self.durable.append(record)
            done(outcome)


class FakeStorage:
    """A dictionary. `room` False refuses puts; `hidden` ledgers are known but not in memory."""

    def __init__(self) -> None:
        self.infos: dict[LedgerId, LedgerInfo] = {}
        self.entries: dict[tuple[LedgerId, EntryId], bytes] = {}
        self.hidden: set[LedgerId] = set()
        self.room = True
        self.load_error: Exception | None = None

    def cached_ledger(self, ledger_id: LedgerId) -> LedgerInfo | None:
        """The state unless it is hidden."""
        return None if ledger_id in self.hidden else self.infos.get(ledger_id)

    def create_ledger(self, ledger_id: LedgerId, master_key: bytes) -> LedgerInfo:
        """Create."""
        assert ledger_id not in self.infos
        self.infos[ledger_id] = LedgerInfo(ledger_id, master_key)
        return self.infos[ledger_id]

    def put(self, info: LedgerInfo, run: Run) -> None:
        """Take entries."""
        if not self.room:
            raise TooManyRequestsError("no room")
        for at, body in enumerate(run.entries):
            self.entries[run.ledger, EntryId(run.first + at)] = bytes(body)
        info.last_entry = EntryId(run.first + len(run.entries) - 1)

    def fence(self, info: LedgerInfo) -> None:
        """Set the fence."""
        info.fenced = True

    def set_explicit_lac(self, info: LedgerInfo, packet: bytes, lac: EntryId) -> None:
        """Keep a packet."""
        info.explicit_lac, info.explicit_lac_entry = packet, lac

    def read_cached(self, info: LedgerInfo, entry: EntryId) -> Buffer | None:
        """Nothing is cached: reads go the long way."""
        return None

    async def load_ledger(self, ledger_id: LedgerId) -> LedgerInfo | None:
        """The state."""
        if self.load_error is not None:
            raise self.load_error
        self.hidden.discard(ledger_id)
        return self.infos.get(ledger_id)

    async def read(self, ledger_id: LedgerId, entry: EntryId) -> Buffer:
        """One entry."""
        if ledger_id not in self.infos:
            raise NoSuchLedgerError("no ledger")
        wanted = self.infos[ledger_id].last_entry if entry == NO_ENTRY else entry
        if (ledger_id, wanted) not in self.entries:
            raise NoSuchEntryError("no entry")
        return self.entries[ledger_id, wanted]

    async def read_many(self, ledger_id: LedgerId, first: EntryId, entries_max: int, bytes_max: int) -> list[Buffer]:
        """One after the other."""
        found: list[Buffer] = [await self.read(ledger_id, first)]
        while len(found) < entries_max and (ledger_id, EntryId(first + len(found))) in self.entries:
            found.append(self.entries[ledger_id, EntryId(first + len(found))])
        return found

    async def flush(self) -> None:
        """Make room."""
        self.room = True


class FakeConnection:
    """Collects what would be sent."""

    is_gone = False
    takes_answers = True

    def __init__(self) -> None:
        self.unanswered = 0
        self.paused = 0
        self.sent: list[bytes] = []

    def send(self, buffers: Sequence[Buffer], answers: int = 1) -> None:
        """Collect."""
        self.unanswered -= answers
        self.sent.append(b"".join(buffers))

    def pause(self, reason: int) -> None:
        """Remember the reason."""
        self.paused |= reason

    def resume(self, reason: int) -> None:
        """Forget it."""
        self.paused &= ~reason

    def responses(self, generation: int = 2) -> list[Response]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return ClientCodec(generation).feed(b"".join(sent))

    @property
    def real(self) -> Connection:
        """The same object under the type that the product names."""
        return cast(Connection, self)


def make_bookie(journal: FakeJournal, storage: FakeStorage, settings: ServiceSettings | None = None) -> Bookie:
    """A bookie on fakes; `disk_full_seen` counts what it reported."""
    return Bookie(
        journal,
        storage,
        settings or ServiceSettings(),
        disk_space=lambda: (1000, 400),
        on_disk_full=lambda: None,
    )
