"""One whole bookie, a client that sends it frames, and a checker that knows the responses.

The client writes several ledgers with every kind of request: runs of adds, adds with deferred sync and forces, explicit
LACs, fences, deletions. Garbage collection, compaction and the scrub run at the same time. `check` reads everything
back over the wire: acknowledged entries are present byte for byte, entries that were never sent are not.
"""

import asyncio
import random
from dataclasses import dataclass, field, replace

from quire_bookie.errors import PeerProtocolError, QuireError
from quire_bookie.limits import KIB, MIB
from quire_bookie.metadata.layout import ledger_path
from quire_bookie.metadata.ledger_metadata import encode_ledger_metadata
from quire_bookie.model import NO_ENTRY, BookieId, DigestType, EntryId, LedgerId, LedgerMetadata, Segment
from quire_bookie.server.process import RunningBookie
from quire_bookie.settings.collection import GarbageCollectionSettings, QuarantineSettings
from quire_bookie.settings.compaction import CompactionSettings
from quire_bookie.settings.journal import JournalSettings
from quire_bookie.settings.scrubbing import ScrubbingSettings
from quire_bookie.settings.storage import StorageSettings
from quire_bookie.wire import client_codec
from quire_bookie.wire.availability import decode
from quire_bookie.wire.client_codec import ClientCodec
from quire_bookie.wire.digest import Digest, master_key
from quire_bookie.wire.messages import ListEntriesResponse, ReadLacResponse, ReadResponse, Response, Status
from tests.sim.disk import Survival
from tests.sim.world import BOOKIE_PORT, SimBookie, World

HOST = "b1"
KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32C, b"")
ANSWER_TIMEOUT_S = 60.0
SIZES = (90, 90, 3_000, 40_000)
FOLDERS: dict[str, tuple[str, ...]] = {"journal_dirs": ("/j0", "/j1"), "ledger_dirs": ("/l0", "/l1")}
"""Settings of a bookie with several folders of each kind."""


class BrokenPromiseError(AssertionError):
    """The bookie lost, invented or denied an entry or a state."""


class GoneError(ConnectionError):
    """The bookie no longer responds."""


def payload(ledger: int, entry: int, size: int) -> bytes:
    """Return the bytes of an entry."""
    return random.Random(ledger << 32 | entry).randbytes(size)


@dataclass(slots=True)
class Known:
    """Tracks the state of one ledger as its client knows it."""

    ledger: LedgerId
    sent: dict[int, bytes] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    """Entries that are certainly durable."""
    deferred: set[int] = field(default_factory=set)
    """Entries that were acknowledged before they were durable."""
    fenced: bool = False
    maybe_fenced: bool = False
    """Whether a fence was sent."""
    packets: list[bytes] = field(default_factory=list)
    packet_acked: int = -1
    """Index of the last acknowledged explicit LAC."""
    deleted: bool = False

    @property
    def where(self) -> str:
        """The ledger's name in messages."""
        return f"ledger {self.ledger}"

    def check_read(self, entry: int, status: Status, data: bytes | None) -> None:
        """Check the response to a read of an entry; status OK has data."""
        where = f"entry {entry} of ledger {self.ledger}"
        if status is Status.OK:
            if data is None or data != self.sent.get(entry):
                raise BrokenPromiseError(f"{where} has bytes that were never sent")
        elif self.deleted:
            if status not in (Status.NO_LEDGER, Status.NO_ENTRY):
                raise BrokenPromiseError(f"{where} of a deleted ledger: the response is {status}")
        elif entry in self.acked or status not in (Status.NO_ENTRY, Status.NO_LEDGER):
            raise BrokenPromiseError(f"{where}: {status}, {'acknowledged' if entry in self.acked else 'sent'}")


class Wire(asyncio.Protocol):
    """A V3 connection; matches responses to requests by transaction."""

    def __init__(self) -> None:
        self._codec = ClientCodec(3)
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._transport: asyncio.Transport | None = None
        self._next = 0
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass each response to the request that waits for it."""
        for response in self._codec.feed(data):
            assert response.transaction is not None  # type: ignore[union-attr]
            waiting = self._waiting.pop(response.transaction, None)  # type: ignore[union-attr]
            if waiting is None:
                raise PeerProtocolError("a response without a request")
            if not waiting.done():
                waiting.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        """Fail all pending requests."""
        self.gone = True
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(GoneError("the bookie closed the connection"))

    def transaction(self) -> int:
        """Return a new transaction number."""
        self._next += 1
        return self._next

    def send(self, transaction: int, frame: bytes) -> "asyncio.Future[Response]":
        """Send a request. The future gets its response, or GoneError."""
        assert self._transport is not None
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        if self.gone:
            answer.set_exception(GoneError("the bookie closed the connection"))
            return answer
        self._waiting[transaction] = answer
        self._transport.write(frame)
        return answer

    async def ask(self, transaction: int, frame: bytes) -> Response:
        """Send a request and wait. BrokenPromiseError without a response."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self.send(transaction, frame)
        except TimeoutError as error:
            raise BrokenPromiseError(f"no response in {ANSWER_TIMEOUT_S:g} s") from error

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


class Life:
    """Owns a bookie across its restarts, and its client's knowledge."""

    def __init__(self, world: World, **changes: object) -> None:
        self.world = world
        self.known: dict[LedgerId, Known] = {}
        self.client = world.loop.start_node("client")
        self.damaged = False
        """Whether bytes were flipped: an error is then a valid response; wrong bytes or *no such entry* are not."""
        world.journal_settings = JournalSettings(
            file_bytes=256 * KIB,
            group_bytes_max=128 * KIB,
            queue_bytes_max=256 * KIB,
            spare_files_max=2,
            reserved_bytes=0,
        )
        world.storage_settings = StorageSettings(
            write_cache_bytes=512 * KIB,
            read_cache_bytes=64 * KIB,
            entry_log_bytes_max=2 * MIB,
            reserved_bytes=0,
            compaction_reserved_bytes=0,
            ledger_states_max=4,
            disk_full_retry_s=0.1,
            open_logs_max=2,
        )
        world.flush_interval_s = (0.02, 0.3)
        world.disk_check_interval_s = 0.2
        world.garbage_collection_settings = GarbageCollectionSettings(
            interval_s=0.15, quarantine=QuarantineSettings(0.3)
        )
        world.compaction_settings = CompactionSettings(
            minor_threshold=0.5,
            minor_interval_s=0.2,
            major_threshold=0.95,
            major_interval_s=0.5,
            rate_bytes_s=20 * MIB,
            latency_max_s=0.0,
        )
        world.changes_of[HOST] = {"scrubbing": ScrubbingSettings(0.3, 20 * MIB), "poisoned_reads_s": 0.5, **changes}

    @property
    def place(self) -> SimBookie:
        """The simulated bookie."""
        return self.world.bookies[HOST]

    @property
    def running(self) -> RunningBookie:
        """The running process."""
        running = self.place.running
        assert running is not None
        return running

    # ---- the process
    async def start(self) -> None:
        """Start the process. After an error (QuireError, OSError) no part of it keeps running."""
        try:
            if HOST in self.world.bookies:
                await self.world.start_bookie(HOST)
            else:
                await self.world.start_bookies(1)
        except (QuireError, OSError):
            place = self.place
            assert place.node is not None and place.session is not None
            self.world.loop.kill(place.node)
            place.session.lease_ran_out()
            place.node = place.running = place.session = None
            raise

    def die(self, survival: Survival) -> None:
        """Cut the power: deferred adds without a force may be lost."""
        if self.place.node is not None:
            self.world.crash_bookie(HOST, survival)
        else:
            self.place.disk = self.place.disk.crash(survival, self.world.chance.randrange(1 << 30))

    def on_crash(self) -> None:
        """Stop the process at once; a callback for `SimDisk.on_crash`."""
        node = self.place.node
        if node is not None:
            self.world.loop.call_soon(self.world.loop.kill, node)

    async def stop(self) -> None:
        """Stop cleanly, ignoring errors of the disk."""
        await self.world.stop_bookie(HOST)

    async def connect(self) -> Wire:
        """Connect from the client's node."""
        loop = self.world.loop

        async def connecting() -> Wire:
            _, wire = await loop.create_connection(Wire, HOST, BOOKIE_PORT)
            return wire  # type: ignore[no-any-return]

        return await loop.run_on(self.client, connecting())

    # ---- the client's work
    def create_ledger(self) -> Known:
        """Create a ledger with a metadata node."""
        ledger = LedgerId(len(self.known))
        segments = (Segment(EntryId(0), (BookieId(f"{HOST}:{BOOKIE_PORT}"),)),)
        value = encode_ledger_metadata(LedgerMetadata(1, 1, 1, segments))
        self.world.metadata.write(ledger_path(ledger), value, None)
        known = self.known[ledger] = Known(ledger)
        return known

    async def work(self, wire: Wire, rounds: int) -> None:
        """Send `rounds` rounds of requests; GoneError ends them early."""
        chance = self.world.chance
        for _ in range(rounds):
            living = [known for known in self.known.values() if not known.deleted]
            while len([known for known in living if not known.maybe_fenced]) < 4:
                living.append(self.create_ledger())
            adding = asyncio.gather(*(self._add(wire, known) for known in living), return_exceptions=True)
            await self._something_else(wire, chance.choice(living))
            await asyncio.sleep(chance.uniform(0.0, 0.05))
            await self._reread(wire, chance.choice(living))
            for result in await adding:
                if isinstance(result, BaseException):
                    raise result

    async def _add(self, wire: Wire, known: Known) -> None:
        chance = self.world.chance
        first = max(known.sent, default=-1) + 1
        deferred = chance.random() < 0.2
        was_fenced, answers = known.fenced, []
        size = chance.choice(SIZES)
        for entry in range(first, first + chance.choice((1, 3, 8))):
            known.sent[entry] = DIGEST.encode_entry(
                known.ledger, EntryId(entry), EntryId(entry - 1), 0, (part := payload(known.ledger, entry, size),)
            )
            known.sent[entry] += part
            number = wire.transaction()
            frame = client_codec.v3_add(
                number, known.ledger, EntryId(entry), KEY, known.sent[entry], deferred_sync=deferred
            )
            answers.append((entry, asyncio.ensure_future(wire.ask(number, frame))))
        done = await asyncio.gather(*(answer for _, answer in answers), return_exceptions=True)
        for (entry, _), response in zip(answers, done, strict=True):
            if isinstance(response, BaseException):
                continue
            status = response.status
            if status is Status.OK:
                if was_fenced:
                    raise BrokenPromiseError(f"entry {entry} was accepted after ledger {known.ledger} was fenced")
                (known.deferred if deferred else known.acked).add(entry)
        if deferred:
            await self._force(wire, known)
        for each in done:
            if isinstance(each, BaseException):
                raise each

    async def _force(self, wire: Wire, known: Known) -> None:
        deferred = set(known.deferred)
        number = wire.transaction()
        answer = await wire.ask(number, client_codec.v3_force(number, known.ledger))
        if answer.status is Status.OK:
            known.acked |= deferred
            known.deferred -= deferred

    async def _something_else(self, wire: Wire, known: Known) -> None:
        chance = self.world.chance
        match chance.randrange(6):
            case 0 if known.acked:
                known.maybe_fenced = True
                before = max(known.acked)
                number = wire.transaction()
                frame = client_codec.v3_read(number, known.ledger, NO_ENTRY, fence_with=KEY)
                answer = await wire.ask(number, frame)
                if answer.status is Status.OK:
                    known.fenced = True
                    self._check_last(known, answer, before)
            case 1 | 2 if known.acked:
                lac = EntryId(max(known.acked))
                known.packets.append(packet := DIGEST.encode_lac(known.ledger, lac))
                number = wire.transaction()
                answer = await wire.ask(number, client_codec.v3_write_lac(number, known.ledger, lac, KEY, packet))
                if answer.status is Status.OK:
                    known.packet_acked = len(known.packets) - 1
            case 3 if len(known.sent) > 10:
                known.deleted = True
                self.world.metadata.remove(ledger_path(known.ledger))
            case _:
                return

    def _check_last(self, known: Known, answer: Response, at_least: int) -> None:
        if not isinstance(answer, ReadResponse) or answer.status is not Status.OK:
            raise BrokenPromiseError(f"the last entry of {known.where}: {answer}")
        entry = DIGEST.decode_entry(answer.data or b"", known.ledger, None).entry
        if entry < at_least:
            raise BrokenPromiseError(f"the last entry of {known.where} is {entry}, {at_least} was acknowledged")
        known.check_read(entry, answer.status, bytes(answer.data or b""))

    async def _reread(self, wire: Wire, known: Known) -> None:
        """Read while the bookie runs and its disk may fail: the response is data or an error, never *no such entry*."""
        if not known.acked:
            return
        for entry in self.world.chance.sample(sorted(known.acked), min(3, len(known.acked))):
            number = wire.transaction()
            answer = await wire.ask(number, client_codec.v3_read(number, known.ledger, EntryId(entry)))
            assert isinstance(answer, ReadResponse)
            if answer.status is not Status.IO_ERROR:
                known.check_read(entry, answer.status, None if answer.data is None else bytes(answer.data))

    # ---- the checker
    async def check(self) -> None:
        """Read everything back from the bookie after all faults have ended. BrokenPromiseError on a violation."""
        wire = await self.connect()
        for known in self.known.values():
            await self._check_entries(wire, known)
            if not known.deleted:
                await self._check_state(wire, known)
        wire.close()
        quarantined = self.running.storage.quarantined
        if quarantined and not self.damaged:
            raise BrokenPromiseError(f"logs are in quarantine although nothing is damaged: {quarantined}")

    async def _check_entries(self, wire: Wire, known: Known) -> None:
        asked = []
        for entry in range(max(known.sent, default=-1) + 2):
            number = wire.transaction()
            frame = client_codec.v3_read(number, known.ledger, EntryId(entry))
            asked.append((entry, await wire.ask(number, frame)))
        for entry, answer in asked:
            assert isinstance(answer, ReadResponse)
            if not self._excused(answer):
                known.check_read(entry, answer.status, None if answer.data is None else bytes(answer.data))

    def _excused(self, answer: Response) -> bool:
        return self.damaged and answer.status in (Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE)

    async def _check_state(self, wire: Wire, known: Known) -> None:
        if not known.acked:
            return
        ledger = known.ledger
        number = wire.transaction()
        answer = await wire.ask(number, client_codec.v3_read_lac(number, ledger))
        if not self._excused(answer):
            self._check_lac(known, answer)
        number = wire.transaction()
        listed = await wire.ask(number, client_codec.v3_list_entries(number, ledger))
        if not self._excused(listed):
            self._check_list(known, listed)
        number = wire.transaction()
        last = await wire.ask(number, client_codec.v3_read(number, ledger, NO_ENTRY))
        if not self._excused(last):
            self._check_last(known, last, max(known.acked))
        if known.fenced:
            await self._check_fence(wire, known)

    def _check_lac(self, known: Known, answer: Response) -> None:
        if not isinstance(answer, ReadLacResponse) or answer.status is not Status.OK:
            raise BrokenPromiseError(f"the LAC of {known.where}: {answer}")
        if known.packet_acked >= 0 and answer.packet not in known.packets[known.packet_acked :]:
            raise BrokenPromiseError(f"the explicit LAC of {known.where} is not the last acknowledged one")

    def _check_list(self, known: Known, listed: Response) -> None:
        if not isinstance(listed, ListEntriesResponse) or listed.status is not Status.OK or listed.availability is None:
            raise BrokenPromiseError(f"the entry list of {known.where}: {listed}")
        held = {entry for first, last in decode(listed.availability).ranges() for entry in range(first, last + 1)}
        if not known.acked <= held <= set(known.sent):
            raise BrokenPromiseError(f"the entry list of {known.where} does not match its entries")

    async def _check_fence(self, wire: Wire, known: Known) -> None:
        entry = max(known.sent) + 1
        body = DIGEST.encode_entry(known.ledger, EntryId(entry), NO_ENTRY, 0, ())
        number = wire.transaction()
        answer = await wire.ask(number, client_codec.v3_add(number, known.ledger, EntryId(entry), KEY, body))
        if answer.status is not Status.FENCED and not self._excused(answer):
            raise BrokenPromiseError(f"{known.where} was fenced, and the response to an add is {answer}")

    def settle_unknowns(self) -> None:
        """Record after a power cut that entries acknowledged before they were durable may be lost."""
        for known in self.known.values():
            known.deferred.clear()

    async def settle_deletions(self) -> None:
        """Wait until the bookie has removed the ledgers without metadata. BrokenPromiseError after a long wait."""
        loop = self.world.loop
        end_s, deleted = loop.time() + 60.0, {known.ledger for known in self.known.values() if known.deleted}
        assert self.place.node is not None
        while deleted & set(await loop.run_on(self.place.node, self.running.storage.ledgers())):
            if loop.time() > end_s:
                raise BrokenPromiseError("deleted ledgers are never removed")
            await asyncio.sleep(0.5)


def changed(world: World, **changes: object) -> None:
    """Change settings of the storage from the next start on."""
    world.storage_settings = replace(world.storage_settings, **changes)  # type: ignore[arg-type]
