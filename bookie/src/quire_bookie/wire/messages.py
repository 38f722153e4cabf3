"""Requests and responses of the bookie protocol as values, the same for V2 and V3. Independent of their encoding.

The `origin` of a request is the data that its response must repeat. Adds are passed on as runs: one `AddRequest` has
consecutive entries of one ledger that were sent with the same key and flags, so that no work is done per entry.
`arrived_s` is the time of the event loop when the request was read from the socket; it is not compared.
"""

from array import array
from collections.abc import Sequence
from dataclasses import field
from typing import TypeAlias

from quire_bookie.dataclass import dataclass
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
    """`header` is the first word of the response: the request's version and opcode, no flags."""

    header: int


@dataclass(frozen=True, slots=True)
class V3Origin:
    """`operation` and `transaction` (txnId), which the response repeats."""

    operation: int
    transaction: int


Origin: TypeAlias = V2Origin | V3Origin


@dataclass(slots=True)
class AddRequest:
    """A run of adds. `transactions[i]` is the txnId of entry i over V3; None over V2.

    `reply_ledger`, `reply_first`: the ids that the responses repeat. They differ from those of the run only in a V3
    request whose body has other ids; such a request is a separate run. `short`: the only entry has ids but no complete
    header; the ledger is still created, and the response is BAD_REQUEST.
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
    """Set by the server: the state of the ledger in which the entries were found to repeat stored ones."""
    waited_s: float = field(default=0.0, compare=False)
    """Set by the server: how long the run waited for space."""


@dataclass(slots=True)
class AddBatch:
    """Plain V2 adds (no flags, small entries) of any ledgers that were consecutive in one buffer.

    Equivalent to the `AddRequest`s of its rows, which `request` returns. `header`: as in `AddRequest`.
    """

    rows: list[RunRow]
    records: bytes
    """The journal records of the rows."""
    entries: int
    size_bytes: int
    header: int
    arrived_s: float = field(default=0.0, compare=False)

    def request(self, row: RunRow) -> AddRequest:
        """Return the request of one row."""
        ledger, first = row[0], row[1]
        run = run_of(self.records, row)
        return AddRequest(run, row[4], False, False, False, ledger, first, self.header, arrived_s=self.arrived_s)

    def requests(self) -> list[AddRequest]:
        """Return the requests of all rows, in order."""
        return [self.request(row) for row in self.rows]


@dataclass(slots=True)
class ReadRequest:
    """A read of one entry; `entry` NO_ENTRY reads the last one. `master_key` is set if `fence` is.

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
    """Plain V2 reads (no flags) of one ledger that were consecutive in one buffer.

    Equivalent to `ReadRequest`s of its `entries` (int64, in the order of the requests).
    """

    origin: V2Origin
    ledger: LedgerId
    entries: "array[int]"
    arrived_s: float = field(default=0.0, compare=False)

    def request(self, index: int) -> ReadRequest:
        """Return one of the requests."""
        return ReadRequest(self.origin, self.ledger, EntryId(self.entries[index]), arrived_s=self.arrived_s)

    def requests(self) -> list[ReadRequest]:
        """Return all requests, in order."""
        return [self.request(index) for index in range(len(self.entries))]

    def part(self, start: int, end: int) -> "ReadRun":
        """Return the reads with index `start` up to and excluding `end`."""
        return ReadRun(self.origin, self.ledger, self.entries[start:end], self.arrived_s)


@dataclass(slots=True)
class BatchReadRequest:
    """A read of consecutive entries. `entries_max` <= 0: no limit; `bytes_max` limits the frame of the response."""

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
    """A request to store `packet` verbatim as the explicit LAC. `lac`: the LAC outside the packet."""

    origin: V3Origin
    ledger: LedgerId
    lac: EntryId
    master_key: bytes = field(repr=False)
    packet: bytes
    high_priority: bool = False
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class ReadLacRequest:
    """A request for the explicit LAC and the last entry."""

    origin: V3Origin
    ledger: LedgerId
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class ForceRequest:
    """A request to sync the journal."""

    origin: V3Origin
    ledger: LedgerId
    arrived_s: float = field(default=0.0, compare=False)


@dataclass(slots=True)
class BookieInfoRequest:
    """A request for disk capacity; `requested` has the bits TOTAL_DISK_CAPACITY and FREE_DISK_SPACE.

    `id_marks`, `ledger`: Quire's extension, a request for an `IdReport`, about this ledger too. `token`: the ledger's
    token from its metadata. `master_key`: asks the bookie to store the token if it holds nothing of the ledger.
    """

    origin: V3Origin
    requested: int
    id_marks: bool = False
    ledger: LedgerId | None = None
    token: bytes | None = field(default=None, repr=False)
    master_key: bytes | None = field(default=None, repr=False)


@dataclass(slots=True)
class ListEntriesRequest:
    """A request for the list of entries of a ledger that the bookie holds."""

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
    """A request that the codec refuses: `answer` is the complete frame of the response."""

    status: Status
    answer: bytes
    origin: Origin


@dataclass(slots=True)
class StartTlsRequest:
    """A request to continue with TLS. Not a `Request`: the socket's owner answers it, and no plaintext may follow."""

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
    """Responses to `count` adds of consecutive ids with equal status. V3: count 1, matched by `transaction`."""

    status: Status
    ledger: LedgerId
    first: EntryId
    count: int = 1
    transaction: int | None = None


@dataclass(slots=True)
class ReadResponse:
    """The response to a read with these ids. `data`: the stored entry. `max_lac`: only for plain V3 reads.

    `lac_update_ms` (since the epoch): the time of the update that woke a parked V3 long poll.
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
    """The response to a batch read, matched by `request_id`."""

    status: Status
    ledger: LedgerId
    first: EntryId
    request_id: int
    entries: Sequence[Buffer] = ()


@dataclass(slots=True)
class ReadLacResponse:
    """`packet`: the explicit LAC as stored. `last_entry`: the complete last entry. Either may be None."""

    status: Status
    ledger: LedgerId
    packet: bytes | None
    last_entry: bytes | None
    transaction: int


@dataclass(slots=True)
class BookieInfoResponse:
    """Bytes of all ledger directories; None if not requested. `ids`: also None from Java bookies."""

    status: Status
    total_bytes: int | None
    free_bytes: int | None
    transaction: int
    ids: IdReport | None = None
    token: bytes | None = field(default=None, repr=False)
    """Token of the ledger in the request; None if the bookie has none."""


@dataclass(slots=True)
class ListEntriesResponse:
    """`availability`: the encoded list (see the module `availability`)."""

    status: Status
    ledger: LedgerId
    availability: bytes | None
    transaction: int


@dataclass(slots=True)
class AuthResponse:
    """One step of an authentication exchange; V2 has no transaction."""

    status: Status
    plugin: str
    payload: bytes
    transaction: int | None = None


@dataclass(slots=True)
class StatusResponse:
    """A V3 response with a status only: WriteLac, Force, StartTLS, or a refusal without a body."""

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
