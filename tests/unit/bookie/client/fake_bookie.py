"""A bookie in memory that uses the real server codec, with configurable faults for each request. For tests only.

Implements the rules that the client relies on: the master key, the fence, the fence of an unknown ledger, duplicates
acknowledged with the newer bytes, explicit LACs, long polls, adds that are not durable before a force.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from quire_bookie.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError, UnauthorizedError
from quire_bookie.model import NO_ENTRY, EntryId, IdCounters, IdReport, LedgerId
from quire_bookie.wire import server_v3
from quire_bookie.wire.messages import (
    AddRequest,
    BatchReadRequest,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceRequest,
    ReadLacRequest,
    ReadRequest,
    Status,
    WriteLacRequest,
)
from quire_bookie.wire.server_codec import (
    ServerCodec,
    encode_adds,
    encode_batch,
    encode_read,
    entry_bytes_within,
)
from quire_bookie.wire.status import status_of

Asked: TypeAlias = AddRequest | ReadRequest | BatchReadRequest | ReadLacRequest | WriteLacRequest | ForceRequest
Fault: TypeAlias = Callable[[Asked], Status | float | None]
"""A status to respond with, seconds to wait before the response, a negative number for never, None for no fault."""


@dataclass(slots=True)
class StoredLedger:
    """The state of one ledger at the bookie."""

    master_key: bytes
    fenced: bool = False
    entries: dict[int, bytes] = field(default_factory=dict)
    unsynced: set[int] = field(default_factory=set)
    lac: int = -1
    packet: bytes | None = None
    token: bytes | None = None


class FakeBookie:
    """Has storage that survives `stop`, and a server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledgers: dict[LedgerId, StoredLedger] = {}
        self.asked: list[Asked] = []
        self.fault: Fault = lambda request: None
        self.batch_bytes_max = 5 * 1024 * 1024
        self.polls: list[Callable[[], None]] = []
        self.seen: IdCounters | None = IdCounters()
        """The counters that it reports; None: it acts as a Java bookie and does not report ids."""
        self.deleted: set[int] = set()
        self.inquiries: list[LedgerId | None] = []
        self.silent_on_ids = False
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    async def start(self, port: int = 0) -> int:
        """Listen. Return the port."""
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", port)
        name: tuple[str, int] = self._server.sockets[0].getsockname()
        return name[1]

    def stop(self) -> None:
        """Break all connections and stop listening."""
        assert self._server is not None
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Break all connections."""
        for connection in list(self._connections):
            connection.transport.abort()

    # ---- rules
    def add(self, request: AddRequest) -> Status:
        """Store a run."""
        ledger = self.ledgers.setdefault(request.run.ledger, StoredLedger(request.master_key))
        if ledger.master_key != request.master_key:
            return Status.UNAUTHORIZED
        if ledger.fenced and not request.recovery:
            return Status.FENCED
        for entry, data in enumerate(request.run.entries, request.run.first):
            ledger.entries[entry] = bytes(data)
            if request.deferred_sync:
                ledger.unsynced.add(entry)
        self.moved(ledger, request.run.lac)
        return Status.OK

    def moved(self, ledger: StoredLedger, lac: int) -> None:
        """Record a LAC and answer the polls that wait for it."""
        ledger.lac = max(ledger.lac, lac)
        for answer in list(self.polls):
            answer()

    def lose_unsynced(self) -> None:
        """Drop adds not covered by a force, as a crash does."""
        for ledger in self.ledgers.values():
            for entry in ledger.unsynced:
                del ledger.entries[entry]
            ledger.unsynced.clear()

    def read(self, request: ReadRequest) -> bytes:
        """Fence if requested, then return the stored bytes. LedgerError."""
        if request.fence:
            assert request.master_key is not None
            ledger = self.ledgers.setdefault(request.ledger, StoredLedger(request.master_key))
            if ledger.master_key != request.master_key:
                raise UnauthorizedError("key")
            ledger.fenced = True
        return self._entry(request.ledger, request.entry)

    def read_batch(self, request: BatchReadRequest) -> list[bytes]:
        """Return consecutive stored entries. LedgerError."""
        entries = [self._entry(request.ledger, request.first)]
        budget = entry_bytes_within(request, self.batch_bytes_max) - len(entries[0]) - 4
        stored = self.ledgers[request.ledger].entries
        while len(entries) < request.entries_max and (data := stored.get(request.first + len(entries))) is not None:
            budget -= len(data) + 4
            if budget < 0:
                break
            entries.append(data)
        return entries

    def _entry(self, ledger_id: LedgerId, entry: EntryId) -> bytes:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            raise NoSuchLedgerError("ledger")
        wanted = max(ledger.entries, default=-1) if entry == NO_ENTRY else entry
        if wanted not in ledger.entries:
            raise NoSuchEntryError("entry")
        return ledger.entries[wanted]


class _Connection(asyncio.Protocol):
    def __init__(self, bookie: FakeBookie) -> None:
        self._bookie = bookie
        self._codec = ServerCodec()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._bookie._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._bookie._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        for request in self._codec.feed(data):
            if isinstance(request, BookieInfoRequest):
                self._answer_ids(request)
                continue
            assert isinstance(request, Asked), request
            self._bookie.asked.append(request)
            fault = self._bookie.fault(request)
            if isinstance(fault, Status):
                self._answer(request, fault)
            elif fault is None:
                self._serve(request)
            elif fault >= 0:
                asyncio.get_running_loop().call_later(fault, self._serve, request)
        assert self._codec.failure is None, self._codec.failure

    def _serve(self, request: Asked) -> None:
        if isinstance(request, ReadLacRequest | WriteLacRequest | ForceRequest):
            self._serve_v3(request)
            return
        if isinstance(request, ReadRequest) and request.previous_lac is not None and self._parked(request):
            return
        if isinstance(request, AddRequest):
            self.transport.write(encode_adds(request, self._bookie.add(request)))
            return
        try:
            if isinstance(request, ReadRequest):
                data = self._bookie.read(request)
                lac = EntryId(self._bookie.ledgers[request.ledger].lac)
                self.transport.writelines(encode_read(request, Status.OK, data, lac))
            else:
                self.transport.writelines(encode_batch(request, Status.OK, self._bookie.read_batch(request)))
        except LedgerError as error:
            self._answer(request, status_of(error))

    def _answer_ids(self, request: BookieInfoRequest) -> None:
        bookie = self._bookie
        if request.token is None:
            bookie.inquiries.append(request.ledger)
        known = {*bookie.ledgers, *bookie.deleted}
        report = None
        if bookie.seen is not None:
            short = LedgerId(max((ledger for ledger in known if ledger < 1 << 31), default=-1))
            long = LedgerId(max((ledger for ledger in known if ledger >= 1 << 31), default=-1))
            if request.ledger is not None and request.token and request.master_key is not None:
                bound = bookie.ledgers.setdefault(request.ledger, StoredLedger(request.master_key))
                if bound.token is None and not bound.entries:
                    bound.token = request.token
                known.add(request.ledger)
            report = IdReport(short, long, bookie.seen, None if request.ledger is None else request.ledger in known)
        held = None if bookie.seen is None or request.ledger is None else bookie.ledgers.get(request.ledger)
        if not bookie.silent_on_ids:
            token = None if held is None else held.token
            info = BookieInfoResponse(Status.OK, None, None, request.origin.transaction, report, token)
            self.transport.write(server_v3.encode_info(info))

    def _parked(self, request: ReadRequest) -> bool:
        """Park a poll that has to wait until the LAC advances or its time is over. Return whether it was parked."""
        ledger, previous_lac = self._bookie.ledgers.get(request.ledger), request.previous_lac
        if ledger is None or previous_lac is None or ledger.lac > previous_lac:
            return False

        def over() -> None:
            if serve in self._bookie.polls:
                self._bookie.polls.remove(serve)
                self._serve(replace(request, previous_lac=None))

        def serve() -> None:
            if ledger.lac > previous_lac:
                over()

        self._bookie.polls.append(serve)
        asyncio.get_running_loop().call_later((request.timeout_ms or 0) / 1000, over)
        return True

    def _serve_v3(self, request: ReadLacRequest | WriteLacRequest | ForceRequest) -> None:
        bookie = self._bookie
        if isinstance(request, WriteLacRequest):
            ledger = bookie.ledgers.setdefault(request.ledger, StoredLedger(request.master_key))
            ledger.packet = bytes(request.packet)
            bookie.moved(ledger, request.lac)
            self.transport.write(server_v3.encode_ledger_status(request.origin, request.ledger, Status.OK))
        elif isinstance(request, ForceRequest):
            if request.ledger in bookie.ledgers:
                bookie.ledgers[request.ledger].unsynced.clear()
            self.transport.write(server_v3.encode_ledger_status(request.origin, request.ledger, Status.OK))
        else:
            ledger = bookie.ledgers.get(request.ledger, StoredLedger(b""))
            last = ledger.entries[max(ledger.entries)] if ledger.entries else None
            if last is None and ledger.packet is None:
                self._answer(request, Status.NO_ENTRY)
            else:
                answer = server_v3.encode_read_lac(request.origin, request.ledger, ledger.packet, last)
                self.transport.write(answer)

    def _answer(self, request: Asked, status: Status) -> None:
        if isinstance(request, AddRequest):
            self.transport.write(encode_adds(request, status))
        elif isinstance(request, WriteLacRequest | ForceRequest | ReadLacRequest):
            self.transport.write(server_v3.encode_ledger_status(request.origin, request.ledger, status))
        elif isinstance(request, ReadRequest):
            self.transport.writelines(encode_read(request, status))
        else:
            self.transport.writelines(encode_batch(request, status))
