"""The bookie's side of protocol V3: decodes protobuf requests and encodes responses as frames. Stateless."""

from collections.abc import Callable
from struct import Struct

from quire_bookie.model import ENTRY_HEADER_BYTES, Buffer, EntryId, LedgerId, Run
from quire_bookie.wire import v3_adds
from quire_bookie.wire.messages import (
    AddRequest,
    AuthRequest,
    AuthResponse,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    RefusedRequest,
    Request,
    StartTlsRequest,
    Status,
    V3Origin,
    WriteLacRequest,
)
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.status import V3_CODES

_LENGTH = Struct(">i")
_ENTRY_IDS = Struct(">qqq")
DEFERRED_SYNC = 1
ADD_OPERATION: int = pb.ADD_ENTRY
START_TLS_OPERATION: int = pb.START_TLS


def frame(message: pb.Response | pb.Request) -> bytes:
    """Encode a message with its length."""
    body: bytes = message.SerializeToString()
    return _LENGTH.pack(len(body)) + body


def request_of(message: pb.Request) -> Request | StartTlsRequest:
    """Convert a parsed message to a request; a request that the protocol refuses becomes a RefusedRequest."""
    header = message.header
    if header.version != pb.VERSION_THREE:
        return _refuse(message, Status.BAD_VERSION)
    decode = _DECODERS.get(header.operation)
    if decode is None:
        return _refuse(message, Status.BAD_REQUEST, with_body=False)
    return decode(message)


def _origin(message: pb.Request) -> V3Origin:
    return V3Origin(message.header.operation, message.header.txnId)


def _response(operation: int, transaction: int, status: Status) -> pb.Response:
    return pb.Response(
        header=pb.PacketHeader(
            version=pb.VERSION_THREE,
            operation=operation,  # type: ignore[arg-type]
            txnId=transaction,
        ),
        status=V3_CODES[status],  # type: ignore[arg-type]
    )


def _refuse(message: pb.Request, status: Status, *, with_body: bool = True) -> RefusedRequest:
    """Refuse a request with a response whose body repeats the request's ids, or 0 for missing ones."""
    operation, code = message.header.operation, V3_CODES[status]
    answer = _response(operation, message.header.txnId, status)
    if with_body and operation == pb.READ_ENTRY:
        read = message.readRequest
        answer.readResponse.MergeFrom(
            pb.ReadResponse(status=code, ledgerId=read.ledgerId, entryId=read.entryId)  # type: ignore[arg-type]
        )
    elif with_body and operation == pb.ADD_ENTRY:
        add = message.addRequest
        answer.addResponse.MergeFrom(
            pb.AddResponse(status=code, ledgerId=add.ledgerId, entryId=add.entryId)  # type: ignore[arg-type]
        )
    elif with_body:
        _set_ledger_body(answer, operation, code, _ledger_of(message))
    return RefusedRequest(status, frame(answer), _origin(message))


def _ledger_of(message: pb.Request) -> int:
    for _, body in message.ListFields():
        ledger = getattr(body, "ledgerId", None)
        if ledger is not None:
            return int(ledger)
    return 0


def _set_ledger_body(answer: pb.Response, operation: int, code: int, ledger: int) -> None:
    """Set a body that consists of a status and a ledger id, or of a status only."""
    if operation == pb.GET_BOOKIE_INFO:
        answer.getBookieInfoResponse.status = code  # type: ignore[assignment]
        return
    body = {
        pb.WRITE_LAC: answer.writeLacResponse,
        pb.READ_LAC: answer.readLacResponse,
        pb.FORCE_LEDGER: answer.forceLedgerResponse,
        pb.GET_LIST_OF_ENTRIES_OF_LEDGER: answer.getListOfEntriesOfLedgerResponse,
    }.get(operation)  # type: ignore[call-overload]
    if body is not None:
        body.status, body.ledgerId = code, ledger


def _decode_add(message: pb.Request) -> Request:
    if not message.HasField("addRequest"):
        return _refuse(message, Status.BAD_REQUEST)
    add = message.addRequest
    body: bytes = add.body
    if len(body) < 16:
        return _refuse(message, Status.BAD_REQUEST)
    short = len(body) < ENTRY_HEADER_BYTES
    # The entry is stored under the ids in its bytes; the response repeats the ids of the request.
    ledger, entry, lac = (*_ENTRY_IDS.unpack_from(body + bytes(8))[:2], -1) if short else _ENTRY_IDS.unpack_from(body)
    return AddRequest(
        run=Run(LedgerId(ledger), EntryId(entry), [body], EntryId(lac), len(body)),
        master_key=add.masterKey,
        recovery=add.flag == pb.AddRequest.RECOVERY_ADD and add.HasField("flag"),
        high_priority=message.header.priority > 0,
        deferred_sync=bool(add.writeFlags & DEFERRED_SYNC),
        reply_ledger=LedgerId(add.ledgerId),
        reply_first=EntryId(add.entryId),
        header=0,
        transactions=[message.header.txnId],
        short=short,
    )


def _decode_read(message: pb.Request) -> Request:
    if not message.HasField("readRequest"):
        return _refuse(message, Status.NO_LEDGER)
    read = message.readRequest
    flag = read.flag if read.HasField("flag") else 0
    fence = flag == pb.ReadRequest.FENCE_LEDGER
    if fence and not read.HasField("masterKey"):
        return _refuse(message, Status.UNAUTHORIZED)
    previous_lac = EntryId(read.previousLAC) if read.HasField("previousLAC") else None
    piggyback = flag == pb.ReadRequest.ENTRY_PIGGYBACK
    if piggyback and previous_lac is not None and read.entryId != -1:
        return _refuse(message, Status.BAD_REQUEST)
    return ReadRequest(
        origin=_origin(message),
        ledger=LedgerId(read.ledgerId),
        entry=EntryId(read.entryId),
        fence=fence,
        high_priority=message.header.priority > 0,
        master_key=read.masterKey if fence else None,
        previous_lac=previous_lac,
        timeout_ms=read.timeOut if read.HasField("timeOut") else None,
        piggyback=piggyback,
    )


def _decode_auth(message: pb.Request) -> Request:
    if not message.HasField("authRequest"):
        return _refuse(message, Status.BAD_REQUEST, with_body=False)
    auth = message.authRequest
    return AuthRequest(_origin(message), auth.authPluginName, auth.payload)


def _decode_write_lac(message: pb.Request) -> Request:
    if not message.HasField("writeLacRequest"):
        return _refuse(message, Status.BAD_REQUEST)
    write = message.writeLacRequest
    return WriteLacRequest(
        _origin(message),
        LedgerId(write.ledgerId),
        EntryId(write.lac),
        write.masterKey,
        write.body,
        message.header.priority > 0,
    )


def _decode_read_lac(message: pb.Request) -> Request:
    if not message.HasField("readLacRequest"):
        return _refuse(message, Status.BAD_REQUEST)
    return ReadLacRequest(_origin(message), LedgerId(message.readLacRequest.ledgerId))


def _decode_force(message: pb.Request) -> Request:
    if not message.HasField("forceLedgerRequest"):
        return _refuse(message, Status.BAD_REQUEST)
    return ForceRequest(_origin(message), LedgerId(message.forceLedgerRequest.ledgerId))


def _decode_list(message: pb.Request) -> Request:
    if not message.HasField("getListOfEntriesOfLedgerRequest"):
        return _refuse(message, Status.BAD_REQUEST)
    return ListEntriesRequest(_origin(message), LedgerId(message.getListOfEntriesOfLedgerRequest.ledgerId))


def _decode_info(message: pb.Request) -> Request:
    asked = message.getBookieInfoRequest
    ledger = LedgerId(asked.quireLedger) if asked.HasField("quireLedger") else None
    token = asked.quireToken if asked.HasField("quireToken") else None
    key = asked.quireMasterKey if asked.HasField("quireMasterKey") else None
    return BookieInfoRequest(_origin(message), asked.requested, asked.quireIdMarks, ledger, token, key)


def _decode_start_tls(message: pb.Request) -> StartTlsRequest:
    return StartTlsRequest(_origin(message))


_DECODERS: dict[int, Callable[[pb.Request], Request | StartTlsRequest]] = {
    pb.ADD_ENTRY: _decode_add,
    pb.READ_ENTRY: _decode_read,
    pb.AUTH: _decode_auth,
    pb.WRITE_LAC: _decode_write_lac,
    pb.READ_LAC: _decode_read_lac,
    pb.GET_BOOKIE_INFO: _decode_info,
    pb.FORCE_LEDGER: _decode_force,
    pb.GET_LIST_OF_ENTRIES_OF_LEDGER: _decode_list,
    pb.START_TLS: _decode_start_tls,
}


def extend_run(previous: Request | None, request: Request) -> bool:
    """Append `request` to `previous` if it is an add that continues it. Return whether it was appended."""
    if not (isinstance(previous, AddRequest) and isinstance(request, AddRequest)):
        return False
    old, new = previous.run, request.run
    if (
        previous.transactions is None
        or request.transactions is None
        or previous.short
        or request.short
        or old.ledger != new.ledger
        or old.first + len(old.entries) != new.first
        or (previous.reply_ledger, previous.reply_first) != (old.ledger, old.first)
        or (request.reply_ledger, request.reply_first) != (new.ledger, new.first)
        or previous.master_key != request.master_key
        or (previous.recovery, previous.high_priority, previous.deferred_sync)
        != (request.recovery, request.high_priority, request.deferred_sync)
    ):
        return False
    old.entries = [*old.entries, *new.entries] if not isinstance(old.entries, list) else old.entries
    old.entries.extend(new.entries)
    old.lac = max(old.lac, new.lac)
    old.size_bytes += new.size_bytes
    previous.transactions.extend(request.transactions)
    return True


def encode_adds(request: AddRequest, status: Status) -> bytes:
    """Encode the responses to every entry of a run, one frame each."""
    assert request.transactions is not None
    return v3_adds.encode_answers(request.transactions, request.reply_ledger, request.reply_first, V3_CODES[status])


def encode_read(
    origin: V3Origin,
    ledger: LedgerId,
    entry: EntryId,
    status: Status,
    data: Buffer | None,
    max_lac: EntryId | None,
    lac_update_ms: int | None,
) -> bytes:
    """Encode the response to a read; `max_lac` only for a successful plain read."""
    answer = _response(origin.operation, origin.transaction, status)
    body = answer.readResponse
    body.status, body.ledgerId, body.entryId = V3_CODES[status], ledger, entry  # type: ignore[assignment]
    if data is not None:
        body.body = bytes(data)
    if max_lac is not None:
        body.maxLAC = max_lac
    if lac_update_ms is not None:
        body.lacUpdateTimestamp = lac_update_ms
    return frame(answer)


def encode_ledger_status(origin: V3Origin, ledger: LedgerId, status: Status) -> bytes:
    """Encode the response to WRITE_LAC and FORCE_LEDGER, and to a failed READ_LAC or list-of-entries."""
    answer = _response(origin.operation, origin.transaction, status)
    _set_ledger_body(answer, origin.operation, V3_CODES[status], ledger)
    return frame(answer)


def encode_read_lac(origin: V3Origin, ledger: LedgerId, packet: Buffer | None, last_entry: Buffer | None) -> bytes:
    """Encode the response to a READ_LAC that found at least one of the two."""
    answer = _response(origin.operation, origin.transaction, Status.OK)
    body = answer.readLacResponse
    body.status, body.ledgerId = V3_CODES[Status.OK], ledger  # type: ignore[assignment]
    if packet is not None:
        body.lacBody = bytes(packet)
    if last_entry is not None:
        body.lastEntryBody = bytes(last_entry)
    return frame(answer)


def encode_list(origin: V3Origin, ledger: LedgerId, availability: bytes) -> bytes:
    """Encode the response to list-of-entries."""
    answer = _response(origin.operation, origin.transaction, Status.OK)
    body = answer.getListOfEntriesOfLedgerResponse
    body.status, body.ledgerId = V3_CODES[Status.OK], ledger  # type: ignore[assignment]
    body.availabilityOfEntriesOfLedger = availability
    return frame(answer)


def encode_info(info: BookieInfoResponse) -> bytes:
    """Encode the response to GET_BOOKIE_INFO."""
    answer = _response(pb.GET_BOOKIE_INFO, info.transaction, info.status)
    body = answer.getBookieInfoResponse
    body.status = V3_CODES[info.status]  # type: ignore[assignment]
    if info.total_bytes is not None:
        body.totalDiskCapacity = info.total_bytes
    if info.free_bytes is not None:
        body.freeDiskSpace = info.free_bytes
    if info.ids is not None:
        marks, seen = body.quireIdMarks, info.ids.seen
        marks.highestShortLedger, marks.highestLongLedger = info.ids.short, info.ids.long
        marks.epoch, marks.shortCounter, marks.longCounter = seen.epoch, seen.short, seen.long
        if info.ids.ledger_known is not None:
            marks.ledgerKnown = info.ids.ledger_known
    if info.token is not None:
        body.quireToken = info.token
    return frame(answer)


def encode_status(origin: V3Origin, status: Status) -> bytes:
    """Encode a response with a status only, without the body of its operation."""
    return frame(_response(origin.operation, origin.transaction, status))


def refuse_start_tls(request: StartTlsRequest) -> RefusedRequest:
    """Refuse START_TLS, because TLS is not offered or already in use."""
    return RefusedRequest(Status.BAD_REQUEST, encode_status(request.origin, Status.BAD_REQUEST), request.origin)


def encode_start_tls(origin: V3Origin) -> bytes:
    """Encode the OK response to START_TLS, the last plaintext bytes."""
    answer = _response(origin.operation, origin.transaction, Status.OK)
    answer.startTLSResponse.SetInParent()
    return frame(answer)


def encode_auth(origin: V3Origin, response: AuthResponse) -> bytes:
    """Encode a step of the authentication exchange."""
    answer = _response(origin.operation, origin.transaction, response.status)
    answer.authResponse.authPluginName = response.plugin
    answer.authResponse.payload = response.payload
    return frame(answer)
