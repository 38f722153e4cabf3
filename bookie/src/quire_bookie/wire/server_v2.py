"""The bookie's side of protocol V2: decodes requests from a buffer and encodes responses. Keeps no state between calls.

Adds arrive in runs, and a run is decoded in one step (`bulk.take_adds`). Other requests are decoded frame by frame,
except plain reads with `batches`.
"""

from array import array
from collections.abc import Sequence
from struct import Struct

from quire_bookie.bulk import add_replies, row_replies, take_add_rows, take_adds, take_reads
from quire_bookie.bulk.plain import BATCHED_ENTRY_BYTES_MAX
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import (
    ENTRY_HEADER_BYTES,
    MASTER_KEY_BYTES,
    NO_ENTRY,
    Buffer,
    EntryId,
    LedgerId,
    Run,
    RunRow,
)
from quire_bookie.wire import v2
from quire_bookie.wire.framing import check_header_fits, check_length
from quire_bookie.wire.messages import (
    AddBatch,
    AddRequest,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    ReadRequest,
    ReadRun,
    RefusedRequest,
    Request,
    Status,
    V2Origin,
)
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.protobuf import parse
from quire_bookie.wire.status import V2_CODES

_IDS = Struct(">qq")
_ENTRY_LENGTH = Struct(">i")
_FULL_ADD_LENGTH = v2.ADD_REQUEST_FIXED_BYTES + ENTRY_HEADER_BYTES
V3_FIRST_BYTE = 0x0A
"""Field 1, length-delimited: the header of a V3 request. No V2 version has this number."""
_HEAD = v2.LENGTH_AND_HEADER.unpack_from
_ADD_IDS = Struct(">20sqq").unpack_from
"""After the header word of an add: master key, ledger, entry."""
_READ_IDS = Struct(">qq").unpack_from
_READ_LENGTH = v2.READ_REQUEST.size - 4
_LOWEST_LAC = EntryId(-(1 << 63))


def decode(data: bytes, position: int, frame_bytes_max: int, requests: list[Request], *, batches: bool = False) -> int:
    """Append the requests of all complete frames from `position` on. Return the position after the last of them.

    With `batches`, plain small adds are decoded to `AddBatch`es, and plain reads of one ledger to `ReadRun`s. Raises
    PeerProtocolError for invalid bytes; the requests before them are in `requests`.
    """
    end = len(data)
    open_runs: dict[bytes, AddRequest] = {}
    while end - position >= 8:
        length, header = _HEAD(data, position)
        if not 0 < length <= frame_bytes_max:
            check_length(length, frame_bytes_max)
        stop = position + 4 + length
        if stop > end:
            return position
        origin = _PLAIN_READS.get(header)
        if origin is not None and length >= _READ_LENGTH:
            open_runs.clear()
            ledger, entry = _READ_IDS(data, position + 8)
            if batches and length == _READ_LENGTH and data[position : position + 16] == data[stop : stop + 16]:
                entries = array("q")
                position, ids = take_reads(data, position)
                entries.frombytes(ids)
                if entries:
                    requests.append(ReadRun(origin, ledger, entries))
                    continue
            requests.append(ReadRequest(origin, ledger, entry))
            position = stop
            continue
        if batches and header == _PLAIN_ADD and length <= _BATCHED_LENGTH_MAX:
            position, rows, records, count, size_bytes = take_add_rows(data, position, frame_bytes_max)
            if count:
                open_runs.clear()
                requests.append(AddBatch(rows, records, count, size_bytes, _PLAIN_ADD_ANSWER))
                continue
        kind = _ADD_KINDS.get(header) or _add_kind(header)
        if kind is not None and length >= _FULL_ADD_LENGTH:
            prefix = data[position + 4 : position + 36]
            key, ledger, entry = _ADD_IDS(data, position + 8)
            request = open_runs.get(prefix)
            if request is None or request.reply_first + len(request.run.entries) != entry:
                run = Run(ledger, entry, [], _LOWEST_LAC, 0)
                request = open_runs[prefix] = AddRequest(run, key, kind[0], kind[1], False, ledger, entry, kind[2])
                requests.append(request)
            run = request.run
            # Decodes this add and those that continue its run.
            position, size_bytes, lac = take_adds(data, position, frame_bytes_max, entry, run.lac, run.entries)  # type: ignore[arg-type]
            run.size_bytes += size_bytes
            run.lac = EntryId(lac)
            continue
        open_runs.clear()  # a read must see the adds sent before it, so a run never continues after another request
        version, opcode, flags = v2.parse_header(header)
        requests.append(_decode_other(memoryview(data)[position:stop], version, opcode, flags))
        position = stop
    check_header_fits(data, position)
    return position


def _add_kind(header: int) -> tuple[bool, bool, int] | None:
    """Return (recovery, high priority, header of the response) if a header word is that of a supported add."""
    version, opcode, flags = v2.parse_header(header)
    if opcode != v2.ADD or version > v2.VERSION:
        return None
    return bool(flags & v2.RECOVERY_ADD), bool(flags & v2.HIGH_PRIORITY), v2.answer_header(version, v2.ADD)


_ADD_KINDS = {
    header: kind
    for header in (v2.header_word(v2.ADD, flags) for flags in (0, v2.RECOVERY_ADD, v2.HIGH_PRIORITY))
    if (kind := _add_kind(header)) is not None
}
"""The usual header words, precomputed: with runs of one entry this saves a tenth of the decoding."""
_PLAIN_ADD = v2.header_word(v2.ADD)
_PLAIN_ADD_ANSWER = v2.answer_header(v2.VERSION, v2.ADD)
_BATCHED_LENGTH_MAX = v2.ADD_REQUEST_FIXED_BYTES + BATCHED_ENTRY_BYTES_MAX
_PLAIN_READS = {v2.header_word(v2.READ): V2Origin(v2.answer_header(v2.VERSION, v2.READ))}
"""Reads without flags, which nearly all reads are."""


def _decode_other(frame: memoryview, version: int, opcode: int, flags: int) -> Request:
    """Decode any complete frame except an add with a complete entry header."""
    size = len(frame)
    header = v2.answer_header(version, opcode)
    if version == V3_FIRST_BYTE:
        raise PeerProtocolError("a V3 request on a V2 connection")
    if opcode == v2.AUTH and size > 8:
        message = parse(pb.AuthMessage, frame[8:])
        return AuthRequest(V2Origin(v2.answer_header(v2.VERSION, v2.AUTH)), message.authPluginName, message.payload)
    if opcode == v2.ADD and size >= v2.ADD_ENTRY_OFFSET + _IDS.size:
        return _decode_odd_add(frame, version, flags, header)
    if opcode == v2.READ and size >= v2.READ_REQUEST.size:
        _, _, ledger, entry = v2.READ_REQUEST.unpack_from(frame)
        if version > v2.VERSION:
            return _bad_version(header, ledger, entry)
        fence = bool(flags & v2.DO_FENCING)
        key = _fencing_key(frame, v2.READ_REQUEST.size, fence)
        high_priority = bool(flags & v2.HIGH_PRIORITY)
        return ReadRequest(V2Origin(header), LedgerId(ledger), EntryId(entry), fence, high_priority, key)
    if opcode == v2.BATCH_READ and size >= v2.BATCH_REQUEST.size:
        _, _, ledger, first, request_id, entries_max, bytes_max = v2.BATCH_REQUEST.unpack_from(frame)
        if version > v2.VERSION:
            return _bad_version(header, ledger, first)
        fence = bool(flags & v2.DO_FENCING)
        key = _fencing_key(frame, v2.BATCH_REQUEST.size, fence)
        return BatchReadRequest(
            V2Origin(header),
            LedgerId(ledger),
            EntryId(first),
            request_id,
            entries_max,
            bytes_max,
            fence,
            bool(flags & v2.HIGH_PRIORITY),
            key,
        )
    raise PeerProtocolError(f"V2 request of opcode {opcode} and {size - 4} bytes")


def _decode_odd_add(frame: memoryview, version: int, flags: int, header: int) -> Request:
    ledger, entry = _IDS.unpack_from(frame, v2.ADD_ENTRY_OFFSET)
    if version > v2.VERSION:
        return _bad_version(header, ledger, entry)
    body = frame[v2.ADD_ENTRY_OFFSET :]
    return AddRequest(
        run=Run(LedgerId(ledger), EntryId(entry), [body], NO_ENTRY, len(body)),
        master_key=bytes(frame[8 : v2.ADD_ENTRY_OFFSET]),
        recovery=bool(flags & v2.RECOVERY_ADD),
        high_priority=bool(flags & v2.HIGH_PRIORITY),
        deferred_sync=False,
        reply_ledger=LedgerId(ledger),
        reply_first=EntryId(entry),
        header=header,
        short=True,
    )


def _fencing_key(frame: memoryview, offset: int, fence: bool) -> bytes | None:
    if not fence:
        return None
    if len(frame) < offset + MASTER_KEY_BYTES:
        raise PeerProtocolError("a fencing read without master key")
    return bytes(frame[offset : offset + MASTER_KEY_BYTES])


def _bad_version(header: int, ledger: int, entry: int) -> RefusedRequest:
    return RefusedRequest(Status.BAD_VERSION, _answer(header, Status.BAD_VERSION, ledger, entry), V2Origin(header))


def with_status(request: RefusedRequest, status: Status) -> bytes | None:
    """Return the response to a refused add or read with another status; None for other operations."""
    length, header, _, ledger, entry = v2.RESPONSE.unpack_from(request.answer)
    if v2.parse_header(header)[1] not in (v2.ADD, v2.READ):
        return None
    return v2.RESPONSE.pack(length, header, V2_CODES[status], ledger, entry)


def _answer(header: int, status: Status, ledger: int, entry: int, more_bytes: int = 0) -> bytes:
    return v2.RESPONSE.pack(v2.ADD_RESPONSE_LENGTH + more_bytes, header, V2_CODES[status], ledger, entry)


def encode_adds(request: AddRequest, status: Status) -> bytes:
    """Encode the responses to every entry of a run."""
    run, code = request.run, V2_CODES[status]
    return add_replies(
        v2.ADD_RESPONSE_LENGTH, request.header, code, request.reply_ledger, request.reply_first, len(run.entries)
    )


def encode_rows(rows: list[RunRow], header: int, status: Status) -> bytes:
    """Encode the responses to every entry of some rows of a batch."""
    return row_replies(v2.ADD_RESPONSE_LENGTH, header, V2_CODES[status], rows)


def encode_read(
    origin: V2Origin, ledger: LedgerId, entry: EntryId, status: Status, data: Buffer | None
) -> list[Buffer]:
    """Encode the response to a read: head, and the entry if there is one."""
    if data is None:
        return [_answer(origin.header, status, ledger, entry)]
    return [_answer(origin.header, status, ledger, entry, len(data)), data]


def encode_batch(request: BatchReadRequest, status: Status, entries: Sequence[Buffer]) -> list[Buffer]:
    """Encode the response to a batch read. The caller ensures its limits (see `entry_bytes_within`)."""
    more_bytes = 8 + sum(map(len, entries)) + 4 * len(entries)
    head = _answer(request.origin.header, status, request.ledger, request.first, more_bytes)
    answer: list[Buffer] = [head + request.request_id.to_bytes(8, "big", signed=True)]
    for entry in entries:
        answer.append(_ENTRY_LENGTH.pack(len(entry)))
        answer.append(entry)
    return answer


def encode_joined_batch(request: BatchReadRequest, parts: Sequence[Buffer], size_bytes: int) -> list[Buffer]:
    """Encode as `encode_batch` does, for `size_bytes` of entries that are already preceded by their lengths."""
    head = _answer(request.origin.header, Status.OK, request.ledger, request.first, 8 + size_bytes)
    return [head + request.request_id.to_bytes(8, "big", signed=True), *parts]


def encode_auth(origin: V2Origin, answer: AuthResponse) -> bytes:
    """Encode a step of the authentication exchange."""
    body: bytes = pb.AuthMessage(authPluginName=answer.plugin, payload=answer.payload).SerializeToString()
    return v2.LENGTH_AND_HEADER.pack(4 + len(body), origin.header) + body
