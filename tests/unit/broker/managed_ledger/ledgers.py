"""A ledger client in memory: keeps the promises of `quire_bookie.client` to managed ledgers, with faults to inject.

`FakeBookies` outlives each client: ledgers with durable entries, fences and closes. `FakeClient` is one process's view
of it. Confirmations arrive in a later loop iteration; a held ledger confirms when released.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quire_bookie.errors import (
    BookieUnavailableError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    PlacementError,
    UnauthorizedError,
)
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.store import ABSENT, Check
from quire_bookie.model import (
    BookieId,
    Buffer,
    DigestType,
    EntryId,
    LedgerId,
    LedgerMetadata,
    LedgerState,
    ReplicaState,
    Segment,
)
from quire_bookie.quorum.bookie_groups import BookieGroups
from quire_bookie.quorum.wanted_copies import narrowed
from quire_broker.managed_ledger.ledger_port import AppendListener, Payload
from quire_broker.managed_ledger.stored_passwords import AcceptStored, to_read

PAYLOAD_BYTES_MAX = 5_000_000


@dataclass(slots=True)
class FakeEntry:
    entry_id: EntryId
    payload: Buffer


@dataclass(slots=True)
class FakeLedger:
    metadata: LedgerMetadata
    entries: list[bytes] = field(default_factory=list)
    """Durable entries, confirmed to the writer or not: recovery finds them."""
    fenced: bool = False
    known_end: int = -1
    """The last entry of which the bookies know that it is confirmed."""


class FakeBookies:
    """The ledgers that all clients share."""

    def __init__(self, bookies: int = 3) -> None:
        self.ledgers: dict[int, FakeLedger] = {}
        self.writable = frozenset(BookieId(f"bookie-{number}") for number in range(bookies))
        self.metadata_away = False
        self.forbidden = ""
        """Why enforced rules of placement allow no ledger; empty: they do."""
        self.next_id = 3
        self.reads = 0
        self.created: list[int] = []
        self.broken_reads: dict[int, LedgerError] = {}
        self.delete_failures = 0
        self.deaf: set[int] = set()
        """Ledgers whose bookies take no LAC."""

    def check_metadata(self) -> None:
        if self.metadata_away:
            raise MetadataUnavailableError("the fake metadata is away")

    def ledger(self, ledger: int) -> FakeLedger:
        found = self.ledgers.get(ledger)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger} does not exist")
        return found

    def of_topic(self, component: bytes = b"managed-ledger", cursor: bool = False) -> list[int]:
        """Return the existing ledgers of data, or of cursors."""
        return sorted(
            ledger
            for ledger, found in self.ledgers.items()
            if found.metadata.custom["component"] == component and ("pulsar/cursor" in found.metadata.custom) == cursor
        )


class FakeWriter:
    def __init__(self, world: FakeBookies, ledger: LedgerId) -> None:
        self.listener: AppendListener | None = None
        self.on_beyond_repair: Callable[[], None] | None = None
        self.on_stored: Callable[[BookieId, int, int], None] | None = None
        self.ledger_id = ledger
        self.is_beyond_repair = False
        self.payload_bytes_max = PAYLOAD_BYTES_MAX
        self.last_add_confirmed = EntryId(-1)
        self.last_add_pushed = EntryId(-1)
        self.held = False
        self.submits = 0
        self._world = world
        self._error: LedgerError | None = None
        self._told_up_to = -1
        self._closed = False
        self._progress = asyncio.Event()

    @property
    def metadata(self) -> LedgerMetadata:
        return self._world.ledger(self.ledger_id).metadata

    def watch_answers(self, on_stored: Callable[[BookieId, int, int], None] | None) -> None:
        self.on_stored = on_stored

    @property
    def is_open(self) -> bool:
        return self._error is None and not self._closed

    @property
    def metadata_check(self) -> Check:
        return Check(f"/ledgers/{self.ledger_id}", ABSENT)  # the fake keeps them elsewhere

    def replica_states(self, entry: EntryId) -> dict[BookieId, ReplicaState]:
        ensemble = self.metadata.segments[-1].ensemble
        states = (ReplicaState.STORED, ReplicaState.LAST, ReplicaState.WAITING)
        return dict(zip(ensemble, states, strict=False))

    def submit(self, payloads: Sequence[Payload]) -> EntryId:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise LedgerClosedError("closed")
        plain = [b"".join(map(bytes, p)) if isinstance(p, tuple) else bytes(p) for p in payloads]
        if any(len(payload) > PAYLOAD_BYTES_MAX for payload in plain):
            raise LedgerError("too large")
        self.submits += 1
        self._world.ledger(self.ledger_id).known_end = self.last_add_confirmed  # in the headers of the entries
        first = EntryId(self.last_add_pushed + 1)
        self.last_add_pushed = EntryId(self.last_add_pushed + len(plain))
        asyncio.get_running_loop().call_soon(self._arrive, plain)
        return first

    def _arrive(self, plain: list[bytes]) -> None:
        if self._error is not None:
            return
        ledger = self._world.ledgers.get(self.ledger_id)
        if ledger is None or ledger.fenced:
            self.fail(LedgerFencedError(f"ledger {self.ledger_id} is fenced"))
            return
        ledger.entries.extend(plain)
        if not self.held:
            self.release()

    def release(self) -> None:
        """Confirm the durable entries."""
        self.held = False
        self.confirm(len(self._world.ledger(self.ledger_id).entries) - 1)

    def confirm(self, up_to: int) -> None:
        if up_to > self.last_add_confirmed and self._error is None:
            self.last_add_confirmed = EntryId(up_to)
            self._progress.set()
            if self.listener is not None:
                self.listener.on_confirmed(EntryId(up_to))

    def fail(self, error: LedgerError) -> None:
        """Fail the writer: the ack quorum is lost."""
        if self._error is None:
            self._error = error
            self._progress.set()
            if self.listener is not None:
                self.listener.on_failed(error)

    async def tell_lac(self) -> EntryId:
        await asyncio.sleep(0)
        if self.ledger_id in self._world.deaf:
            raise BookieUnavailableError("no bookie takes the LAC")
        self._world.ledger(self.ledger_id).known_end = told = self.last_add_confirmed
        return told

    async def append(self, payload: Payload) -> EntryId:
        entry = self.submit((payload,))
        while self.last_add_confirmed < entry:
            if self._error is not None:
                raise self._error
            self._progress.clear()
            await self._progress.wait()
        return entry

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> list[FakeEntry]:
        if last > self.last_add_confirmed:
            raise NoSuchEntryError(f"{first} to {last} of {self.ledger_id}: confirmed {self.last_add_confirmed}")
        return await _read(self._world, self.ledger_id, first, last, bytes_max)

    def abandon(self) -> None:
        self.fail(LedgerClosedError("abandoned"))

    async def close(self, transact: Transact | None = None) -> LedgerMetadata:
        while self._error is None and self.last_add_confirmed < self.last_add_pushed:
            self._progress.clear()
            await self._progress.wait()
        await asyncio.sleep(0)
        self._world.check_metadata()
        ledger = self._world.ledger(self.ledger_id)
        self._closed = True
        found = ledger.metadata
        same = found.state is LedgerState.CLOSED and found.last_entry == self.last_add_confirmed
        if (isinstance(self._error, LedgerFencedError) or ledger.fenced) and not same:
            raise LedgerFencedError(f"ledger {self.ledger_id} was taken over")
        return _close(ledger, self.last_add_confirmed + 1)


class FakeReader:
    def __init__(self, world: FakeBookies, ledger: LedgerId) -> None:
        self.ledger_id = ledger
        self._world = world
        self.closed = False
        self._taken = EntryId(-1)
        self._look()

    def _look(self) -> None:
        found = self._world.ledger(self.ledger_id)
        self.metadata = found.metadata
        ended = found.metadata.state is LedgerState.CLOSED
        known = max(EntryId(found.known_end), self._taken)
        self.last_add_confirmed = found.metadata.last_entry if ended else known
        self.length = sum(map(len, found.entries[: self.last_add_confirmed + 1]))

    def take_confirmed(self, entry: EntryId) -> None:
        self._taken = entry
        self._look()

    async def wait_for_lac(self, beyond: EntryId, timeout_s: float) -> EntryId:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while True:
            self._look()
            known = self.last_add_confirmed > beyond or self.metadata.state is LedgerState.CLOSED
            if known or loop.time() >= end_s:
                return self.last_add_confirmed
            await asyncio.sleep(0.1)

    async def read(self, first: EntryId, last: EntryId, bytes_max: int | None = None) -> list[FakeEntry]:
        if self.closed:
            raise LedgerClosedError("reader closed")
        if last > self.last_add_confirmed:
            raise NoSuchEntryError(f"{first} to {last} of {self.ledger_id}")
        return await _read(self._world, self.ledger_id, first, last, bytes_max)

    async def read_stored(self, first: EntryId, last: EntryId, bytes_max: int) -> None:
        """Return no stored form, so that callers use `read`."""

    async def close(self) -> None:
        self.closed = True


async def _read(
    world: FakeBookies, ledger: LedgerId, first: EntryId, last: EntryId, bytes_max: int | None
) -> list[FakeEntry]:
    await asyncio.sleep(0)
    world.reads += 1
    if ledger in world.broken_reads:
        raise world.broken_reads[ledger]
    found: list[FakeEntry] = []
    size = 0
    for entry_id in range(first, last + 1):
        payload = world.ledger(ledger).entries[entry_id]
        size += len(payload)
        if bytes_max is not None and size > bytes_max and found:
            break
        found.append(FakeEntry(EntryId(entry_id), payload))
    return found


def _close(ledger: FakeLedger, entries: int) -> LedgerMetadata:
    if ledger.metadata.state is not LedgerState.CLOSED:
        del ledger.entries[entries:]
        ledger.metadata = replace(
            ledger.metadata,
            state=LedgerState.CLOSED,
            last_entry=EntryId(entries - 1),
            length=sum(map(len, ledger.entries)),
        )
    return ledger.metadata


class FakeClient:
    """The client of one process. If `dead`, none of its calls has an effect any more."""

    def __init__(self, world: FakeBookies) -> None:
        self.world = world
        self.writers: list[FakeWriter] = []
        self.recoveries = 0
        self.listeners: list[Callable[[], None]] = []

    def ensemble_max_in(self, groups: BookieGroups | None, wanted: int) -> int:
        return len(self.world.writable)

    def on_bookies_changed(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def set_writable(self, count: int) -> None:
        self.world.writable = frozenset(BookieId(f"bookie-{number}") for number in range(count))
        for listener in self.listeners:
            listener()

    async def create_ledger(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom: Mapping[str, bytes] | None = None,
        fewer_bookies: bool = False,
    ) -> FakeWriter:
        await asyncio.sleep(0)
        self.world.check_metadata()
        if self.world.forbidden:
            raise PlacementError(self.world.forbidden)
        if fewer_bookies:
            writable = len(self.world.writable)
            ensemble_size, write_quorum = narrowed(ensemble_size, write_quorum, ack_quorum, writable)
        if len(self.world.writable) < ensemble_size:
            raise NotEnoughBookiesError(f"{len(self.world.writable)} bookies, {ensemble_size} needed")
        ledger = LedgerId(self.world.next_id)
        self.world.next_id += 1
        ensemble = tuple(sorted(self.world.writable))[:ensemble_size]
        self.world.ledgers[ledger] = FakeLedger(
            LedgerMetadata(
                ensemble_size,
                write_quorum,
                ack_quorum,
                (Segment(EntryId(0), ensemble),),
                digest_type=digest_type,
                password=password,
                custom=dict(custom or {}),
            )
        )
        self.world.created.append(ledger)
        writer = FakeWriter(self.world, ledger)
        self.writers.append(writer)
        return writer

    def writer_of(self, ledger: LedgerId) -> FakeWriter | None:
        return next((one for one in self.writers if one.ledger_id == ledger and one.is_open), None)

    async def open_ledger(
        self,
        ledger: LedgerId,
        *,
        password: bytes = b"",
        recover: bool,
        accept_stored: AcceptStored = to_read,
    ) -> FakeReader:
        await asyncio.sleep(0)
        self.world.check_metadata()
        found = self.world.ledger(ledger)
        if found.metadata.password != password and not accept_stored(found.metadata):
            raise UnauthorizedError(f"wrong password for ledger {ledger}")
        self.recoveries += recover
        if recover and found.metadata.state is not LedgerState.CLOSED:
            if not self.world.writable:
                raise BookieUnavailableError("no bookie answers")
            found.fenced = True
            await asyncio.sleep(0)
            _close(found, len(found.entries))
        return FakeReader(self.world, ledger)

    async def read_metadata(self, ledger: LedgerId) -> LedgerMetadata:
        await asyncio.sleep(0)
        self.world.check_metadata()
        return self.world.ledger(ledger).metadata

    async def delete_ledger(self, ledger: LedgerId) -> None:
        await asyncio.sleep(0)
        self.world.check_metadata()
        if self.world.delete_failures:
            self.world.delete_failures -= 1
            raise MetadataUnavailableError("deletion fails")
        self.world.ledger(ledger)
        del self.world.ledgers[ledger]

    def tail(self) -> FakeWriter:
        """Return the newest writer of a data ledger."""
        return next(
            writer
            for writer in reversed(self.writers)
            if writer.ledger_id in self.world.ledgers and "pulsar/cursor" not in writer.metadata.custom
        )
