"""Requests and responses of the bookie protocol as values, the same for V2 and V3. Never knows bytes of a frame.

A request carries an `origin`: what its answer must repeat. Adds are handed on as runs: one `AddRequest` holds
consecutive entries of one ledger, sent with one key and one set of flags, so that nothing is done per entry.
`arrived_s` of a request is set by whoever takes it off the socket, in seconds of its event loop; no part of its value.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from quire_bookie.model import Buffer, EntryId, IdReport, LedgerId, Run, RunRow, run_of
from quire_bookie.wire.status import Status, error_of

__all__ = [
    "AddBatch",
    "AddRequest",
    "AddResponse",
    "AuthRequest",
    "AuthResponse",
    "BatchReadRequest",
    "BatchReadResponse",
    "BookieInfoRequest",
    "BookieInfoResponse",
    "ForceRequest",
    "ListEntriesRequest",
    "ListEntriesResponse",
    "Origin",
    "ReadLacRequest",
    "ReadLacResponse",
    "ReadRequest",
    "ReadResponse",
    "ReadRun",
    "RefusedRequest",
    "Request",
    "Response",
    "StartTlsRequest",
    "Status",
    "StatusResponse",
    "V2Origin",
    "V3Origin",
    "WriteLacRequest",
    "error_of",
]

AUTH_DISABLED_PLUGIN = "AuthDisabledPlugin"
TOTAL_DISK_CAPACITY = 0x01
FREE_DISK_SPACE = 0x02


@dataclass(frozen=True, slots=True)
class V2Origin:
    """`header` is the first word of the answer: the request's version and opcode, no flags."""

    header: int


@dataclass(frozen=True, slots=True)
class V3Origin:
    """`operation` and `transaction` (txnId) as the answer repeats them."""

    operation: int
    transaction: int


Origin: TypeAlias = V2Origin | V3Origin


@dataclass(slots=True)
class AddRequest:
    """A run of adds. `transactions[i]` is the txnId of entry i over V3; None over V2.

    `reply_ledger`, `reply_first`: the ids that the answers repeat. They differ from the run's only in a V3 request
    whose body names other ids; such a request is a run of its own. `short`: the one entry has ids but no complete
    header: the ledger is created all the same and the answer is BAD_REQUEST.
    """

    run: Run
    master_key: bytes = field(repr=False)
    recovery: bool
    high_priority: bool
    deferred_sync: bool
    reply_ledger: LedgerId
    reply_first: EntryId
    header: int
    transactions: list[int] | None = None
    short: bool = False
    arrived_s: float = field(default=0.0, compare=False)
    compared: tuple[int, int] | None = field(default=None, compare=False)
    """The server's note: as of which state of the ledger these are repetitions of what it holds."""


@dataclass(slots=True)
class AddBatch:
    """Plain adds of V2 (no flags, small entries) of any ledgers that stood one behind the other in one buffer.

    What `AddRequest`s of its rows would be together; `request` gives one. `header` as in those.
    """

    rows: list[RunRow]
    records: bytes
    """The journal records of the rows."""
    entries: int
    size_bytes: int
    header: int
    arrived_s: float = field(default=0.0, compare=False)

    def request(self, row: RunRow) -> AddRequest:
        """The request of one row by itself."""
        ledger, first = row[0], row[1]
        run = run_of(self.records, row)
        return AddRequest(run, row[4], False, False, False, ledger, first, self.header, arrived_s=self.arrived_s)

    def requests(self) -> list[AddRequest]:
        """Those of all rows, in order."""
        return [self.request(row) for row in self.rows]


@dataclass(slots=True)
class ReadRequest:
    """One entry; `entry` NO_ENTRY asks for the last one. `master_key` is there whenever `fence` is.

    `previous_lac`, `timeout_ms`, `piggyback`: V3 long polls.
    """

    origin: Origin
    ledger: LedgerId
    entry: EntryId
    fence: bool = False
    high_priority: bool = False
    master_key: bytes | None = field(default=None, repr=False)
    previous_lac: EntryId | None = None
    timeout_ms: int | None = None
    piggyback: bool = False
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class ReadRun:
    """Plain reads of V2 (no flags) of one ledger that stood one behind the other in one buffer.

    What `ReadRequest`s of its `entries` (int64, in the order of the requests) would be together.
    """

    origin: V2Origin
    ledger: LedgerId
    entries: "array[int]"
    arrived_s: float = field(default=0.0, compare=False)

    def request(self, index: int) -> ReadRequest:
        """One of them by itself."""
        return ReadRequest(self.origin, self.ledger, EntryId(self.entries[index]), arrived_s=self.arrived_s)

    def requests(self) -> list[ReadRequest]:
        """All of them, in order."""
        return [self.request(index) for index in range(len(self.entries))]

    def part(self, start: int, end: int) -> "ReadRun":
        """Those from index `start` to before `end`."""
        return ReadRun(self.origin, self.ledger, self.entries[start:end], self.arrived_s)


@dataclass(slots=True)
class BatchReadRequest:
    """Consecutive entries from `first`; `entries_max` <= 0: no limit; `bytes_max` counts the answer's frame."""

    origin: V2Origin
    ledger: LedgerId
    first: EntryId
    request_id: int
    entries_max: int
    bytes_max: int
    fence: bool = False
    high_priority: bool = False
    master_key: bytes | None = field(default=None, repr=False)
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class WriteLacRequest:
    """Store `packet` verbatim as the explicit LAC. `lac` is what the envelope says."""

    origin: V3Origin
    ledger: LedgerId
    lac: EntryId
    master_key: bytes = field(repr=False)
    packet: bytes
    high_priority: bool = False
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class ReadLacRequest:
    """The explicit LAC and the last entry."""

    origin: V3Origin
    ledger: LedgerId
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class ForceRequest:
    """Sync the journal up to now."""

    origin: V3Origin
    ledger: LedgerId
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class BookieInfoRequest:
    """Disk capacity; `requested` holds TOTAL_DISK_CAPACITY and FREE_DISK_SPACE bits.

    `id_marks`, `ledger`: our extension, an `IdReport`, about this ledger too. `token`: that of the ledger as the client
    knows it. `master_key`: the bookie keeps the token if it holds nothing of the ledger.
    """

    origin: V3Origin
    requested: int
    id_marks: bool = False
    ledger: LedgerId | None = None
    token: bytes | None = field(default=None, repr=False)
    master_key: bytes | None = field(default=None, repr=False)


@dataclass(slots=True)
class ListEntriesRequest:
    """Which entries of a ledger the bookie holds."""

    origin: V3Origin
    ledger: LedgerId
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class AuthRequest:
    """One step of an authentication exchange."""

    origin: Origin
    plugin: str
    payload: bytes


@dataclass(slots=True)
class RefusedRequest:
    """A request to which the protocol itself gives the answer: `answer` is the complete frame."""

    status: Status
    answer: bytes
    origin: Origin


@dataclass(slots=True)
class StartTlsRequest:
    """Go on in TLS. No `Request`: whoever owns the socket answers it, and nothing may follow it in clear."""

    origin: V3Origin


Request: TypeAlias = (
    AddRequest
    | AddBatch
    | ReadRequest
    | ReadRun
    | BatchReadRequest
    | WriteLacRequest
    | ReadLacRequest
    | ForceRequest
    | BookieInfoRequest
    | ListEntriesRequest
    | AuthRequest
    | RefusedRequest
)


@dataclass(slots=True)
class AddResponse:
    """Answers to `count` adds of consecutive ids with one status. V3: count 1, matched by `transaction`."""

    status: Status
    ledger: LedgerId
    first: EntryId
    count: int = 1
    transaction: int | None = None


@dataclass(slots=True)
class ReadResponse:
    """`ledger` and `entry` are the request's ids. `data`: the stored entry. `max_lac`: V3 plain reads.

    `lac_update_ms` (since the epoch): when the update came that woke a parked V3 long poll.
    """

    status: Status
    ledger: LedgerId
    entry: EntryId
    data: Buffer | None = None
    max_lac: EntryId | None = None
    transaction: int | None = None
    lac_update_ms: int | None = None


@dataclass(slots=True)
class BatchReadResponse:
    """Matched by `request_id`."""

    status: Status
    ledger: LedgerId
    first: EntryId
    request_id: int
    entries: Sequence[Buffer] = ()


@dataclass(slots=True)
class ReadLacResponse:
    """`packet`: the explicit LAC as stored; `last_entry`: the complete last entry. Either may be absent."""

    status: Status
    ledger: LedgerId
    packet: bytes | None
    last_entry: bytes | None
    transaction: int


@dataclass(slots=True)
class BookieInfoResponse:
    """Bytes over the ledger directories; None: not asked for. `ids`: also None from bookies of other makes."""

    status: Status
    total_bytes: int | None
    free_bytes: int | None
    transaction: int
    ids: IdReport | None = None
    token: bytes | None = field(default=None, repr=False)
    """Of the ledger that was asked about; None: it has none here."""


@dataclass(slots=True)
class ListEntriesResponse:
    """`availability`: the encoded list (see `availability`)."""

    status: Status
    ledger: LedgerId
    availability: bytes | None
    transaction: int


@dataclass(slots=True)
class AuthResponse:
    """One step of the exchange; V2 has no transaction."""

    status: Status
    plugin: str
    payload: bytes
    transaction: int | None = None


@dataclass(slots=True)
class StatusResponse:
    """A V3 answer that is only a status: WriteLac, Force, StartTLS, or a refusal without a body."""

    status: Status
    operation: int
    transaction: int


Response: TypeAlias = (
    AddResponse
    | ReadResponse
    | BatchReadResponse
    | ReadLacResponse
    | BookieInfoResponse
    | ListEntriesResponse
    | AuthResponse
    | StatusResponse
)
