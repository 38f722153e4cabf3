"""The client's side of protocol V3: encodes requests as frames and converts parsed responses. Stateless.

`priority`: 0 for normal requests, HIGH_PRIORITY for recovery. The caller chooses `transaction` (txnId), which must be
unique among the requests in flight on one connection.
"""

from quire_bookie.model import Buffer, EntryId, IdCounters, IdReport, LedgerId
from quire_bookie.wire.messages import (
    AddResponse,
    AuthResponse,
    BookieInfoResponse,
    ListEntriesResponse,
    ReadLacResponse,
    ReadResponse,
    Response,
    StatusResponse,
)
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.server_v3 import DEFERRED_SYNC, frame
from quire_bookie.wire.status import status_of_v3

HIGH_PRIORITY = 100


def _request(operation: pb.OperationType, transaction: int, priority: int = 0) -> pb.Request:
    header = pb.PacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=transaction)
    if priority:
        header.priority = priority
    return pb.Request(header=header)


def add(
    transaction: int,
    ledger: LedgerId,
    entry: EntryId,
    master_key: bytes,
    data: Buffer,
    *,
    recovery: bool = False,
    deferred_sync: bool = False,
    priority: int = 0,
) -> bytes:
    """Encode an add of a complete entry."""
    request = _request(pb.ADD_ENTRY, transaction, priority)
    body = request.addRequest
    body.ledgerId, body.entryId, body.masterKey, body.body = ledger, entry, master_key, bytes(data)
    if deferred_sync:
        body.writeFlags = DEFERRED_SYNC
    if recovery:
        body.flag = pb.AddRequest.RECOVERY_ADD
    return frame(request)


def read(
    transaction: int,
    ledger: LedgerId,
    entry: EntryId,
    *,
    fence_with: bytes | None = None,
    previous_lac: EntryId | None = None,
    timeout_ms: int | None = None,
    piggyback: bool = False,
    priority: int = 0,
) -> bytes:
    """Encode a read. With `fence_with` (the master key) it fences the ledger first; the rest is for long polls."""
    request = _request(pb.READ_ENTRY, transaction, priority)
    body = request.readRequest
    body.ledgerId, body.entryId = ledger, entry
    if fence_with is not None:
        body.masterKey, body.flag = fence_with, pb.ReadRequest.FENCE_LEDGER
    if previous_lac is not None:
        body.previousLAC = previous_lac
    if timeout_ms is not None:
        body.timeOut = timeout_ms
    if piggyback:
        body.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    return frame(request)


def write_lac(transaction: int, ledger: LedgerId, lac: EntryId, master_key: bytes, packet: bytes) -> bytes:
    """Encode a request to store an explicit LAC (packet: `Digest.encode_lac`)."""
    request = _request(pb.WRITE_LAC, transaction)
    body = request.writeLacRequest
    body.ledgerId, body.lac, body.masterKey, body.body = ledger, lac, master_key, packet
    return frame(request)


def read_lac(transaction: int, ledger: LedgerId) -> bytes:
    """Encode a request for explicit LAC and last entry."""
    request = _request(pb.READ_LAC, transaction)
    request.readLacRequest.ledgerId = ledger
    return frame(request)


def force(transaction: int, ledger: LedgerId) -> bytes:
    """Encode a request to sync everything that was added with DEFERRED_SYNC."""
    request = _request(pb.FORCE_LEDGER, transaction)
    request.forceLedgerRequest.ledgerId = ledger
    return frame(request)


def bookie_info(transaction: int, requested: int) -> bytes:
    """Encode a request for disk capacity (TOTAL_DISK_CAPACITY | FREE_DISK_SPACE)."""
    request = _request(pb.GET_BOOKIE_INFO, transaction)
    request.getBookieInfoRequest.requested = requested
    return frame(request)


def id_marks(transaction: int, ledger: LedgerId | None = None) -> bytes:
    """Encode a request for an `IdReport`, about `ledger` too if given. Java bookies respond without one."""
    request = _request(pb.GET_BOOKIE_INFO, transaction)
    request.getBookieInfoRequest.requested = 0
    request.getBookieInfoRequest.quireIdMarks = True
    if ledger is not None:
        request.getBookieInfoRequest.quireLedger = ledger
    return frame(request)


def ledger_token(transaction: int, ledger: LedgerId, token: bytes, master_key: bytes | None) -> bytes:
    """Encode a request for the token of a ledger, and for an `IdReport` about it.

    With `master_key` the bookie stores `token` if it holds nothing of the ledger.
    """
    request = _request(pb.GET_BOOKIE_INFO, transaction)
    body = request.getBookieInfoRequest
    body.requested, body.quireIdMarks, body.quireLedger = 0, True, ledger
    body.quireToken = token
    if master_key is not None:
        body.quireMasterKey = master_key
    return frame(request)


def list_entries(transaction: int, ledger: LedgerId) -> bytes:
    """Encode a request for the list of entries of a ledger that the bookie holds."""
    request = _request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, transaction)
    request.getListOfEntriesOfLedgerRequest.ledgerId = ledger
    return frame(request)


def start_tls(transaction: int) -> bytes:
    """Encode START_TLS, the last plaintext bytes."""
    request = _request(pb.START_TLS, transaction)
    request.startTLSRequest.SetInParent()
    return frame(request)


def auth(transaction: int, plugin: str, payload: bytes) -> bytes:
    """Encode a step of an authentication exchange."""
    request = _request(pb.AUTH, transaction)
    request.authRequest.authPluginName, request.authRequest.payload = plugin, payload
    return frame(request)


def _id_report(marks: pb.QuireIdMarks) -> IdReport:
    return IdReport(
        LedgerId(marks.highestShortLedger),
        LedgerId(marks.highestLongLedger),
        IdCounters(marks.epoch, marks.shortCounter, marks.longCounter),
        marks.ledgerKnown if marks.HasField("ledgerKnown") else None,
    )


def response_of(message: pb.Response) -> Response:
    """Convert a parsed response. One without the body of its operation becomes a StatusResponse."""
    status, transaction = status_of_v3(message.status), message.header.txnId
    operation = message.header.operation
    if operation == pb.ADD_ENTRY and message.HasField("addResponse"):
        add_body = message.addResponse
        return AddResponse(status, LedgerId(add_body.ledgerId), EntryId(add_body.entryId), 1, transaction)
    if operation == pb.READ_ENTRY and message.HasField("readResponse"):
        read_body = message.readResponse
        return ReadResponse(
            status,
            LedgerId(read_body.ledgerId),
            EntryId(read_body.entryId),
            read_body.body if read_body.HasField("body") else None,
            EntryId(read_body.maxLAC) if read_body.HasField("maxLAC") else None,
            transaction,
            read_body.lacUpdateTimestamp if read_body.HasField("lacUpdateTimestamp") else None,
        )
    if operation == pb.READ_LAC and message.HasField("readLacResponse"):
        lac_body = message.readLacResponse
        return ReadLacResponse(
            status,
            LedgerId(lac_body.ledgerId),
            lac_body.lacBody if lac_body.HasField("lacBody") else None,
            lac_body.lastEntryBody if lac_body.HasField("lastEntryBody") else None,
            transaction,
        )
    if operation == pb.GET_BOOKIE_INFO and message.HasField("getBookieInfoResponse"):
        info = message.getBookieInfoResponse
        return BookieInfoResponse(
            status,
            info.totalDiskCapacity if info.HasField("totalDiskCapacity") else None,
            info.freeDiskSpace if info.HasField("freeDiskSpace") else None,
            transaction,
            _id_report(info.quireIdMarks) if info.HasField("quireIdMarks") else None,
            info.quireToken if info.HasField("quireToken") else None,
        )
    if operation == pb.GET_LIST_OF_ENTRIES_OF_LEDGER and message.HasField("getListOfEntriesOfLedgerResponse"):
        listing = message.getListOfEntriesOfLedgerResponse
        found = listing.availabilityOfEntriesOfLedger if listing.HasField("availabilityOfEntriesOfLedger") else None
        return ListEntriesResponse(status, LedgerId(listing.ledgerId), found, transaction)
    if operation == pb.AUTH and message.HasField("authResponse"):
        return AuthResponse(status, message.authResponse.authPluginName, message.authResponse.payload, transaction)
    return StatusResponse(status, operation, transaction)
