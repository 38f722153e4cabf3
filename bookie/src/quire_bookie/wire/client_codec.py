"""The client's end of one connection: encodes requests and decodes responses. Never uses a socket.

The protocol generation of a connection never changes. The `v2_` functions build V2 requests, `v2_adds` as buffers to
write one after the other (payloads are not copied), the `v3_` functions build V3 requests as one frame each. V2
responses are matched by (ledger, entry, kind), V3 responses by transaction.
"""

from collections.abc import Iterable, Sequence

from quire_bookie.bulk import add_replies
from quire_bookie.errors import PeerProtocolError
from quire_bookie.limits import FRAME_BYTES_MAX
from quire_bookie.model import Buffer, EntryId, LedgerId
from quire_bookie.wire import client_v3, v2
from quire_bookie.wire.framing import Straddler, check_header_fits, check_length
from quire_bookie.wire.messages import (
    AddResponse,
    AuthResponse,
    BatchReadResponse,
    ReadResponse,
    Response,
    Status,
)
from quire_bookie.wire.packed_entries import PackedEntries
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.protobuf import parse
from quire_bookie.wire.status import status_of_v2


def v2_adds(
    master_key: bytes,
    entries: Iterable[Sequence[Buffer]],
    *,
    recovery: bool = False,
    high_priority: bool = False,
) -> list[Buffer]:
    """Encode adds of complete entries, each given in parts: head (see `Digest.encode_entry`) and payload."""
    flags = (v2.RECOVERY_ADD if recovery else 0) | (v2.HIGH_PRIORITY if high_priority else 0)
    header = v2.header_word(v2.ADD, flags)
    pack = v2.LENGTH_AND_HEADER.pack
    buffers: list[Buffer] = []
    for parts in entries:
        size = sum(map(len, parts))
        buffers.append(pack(v2.ADD_REQUEST_FIXED_BYTES + size, header) + master_key + bytes(parts[0]))
        buffers.extend(parts[1:])
    return buffers


def v2_read(ledger: LedgerId, entry: EntryId, *, fence_with: bytes | None = None, high_priority: bool = False) -> bytes:
    """Encode a read; NO_ENTRY reads the last entry. `fence_with`: the master key, to fence the ledger first."""
    flags = (v2.DO_FENCING if fence_with is not None else 0) | (v2.HIGH_PRIORITY if high_priority else 0)
    key = fence_with or b""
    length = v2.READ_REQUEST.size - 4 + len(key)
    return v2.READ_REQUEST.pack(length, v2.header_word(v2.READ, flags), ledger, entry) + key


def v2_batch_read(
    ledger: LedgerId,
    first: EntryId,
    request_id: int,
    entries_max: int,
    bytes_max: int,
    *,
    fence_with: bytes | None = None,
) -> bytes:
    """Encode a read of consecutive entries; see `BatchReadRequest` for the limits."""
    header = v2.header_word(v2.BATCH_READ, v2.DO_FENCING if fence_with is not None else 0)
    key = fence_with or b""
    length = v2.BATCH_REQUEST.size - 4 + len(key)
    return v2.BATCH_REQUEST.pack(length, header, ledger, first, request_id, entries_max, bytes_max) + key


def v2_auth(plugin: str, payload: bytes) -> bytes:
    """Encode a step of an authentication exchange."""
    body: bytes = pb.AuthMessage(authPluginName=plugin, payload=payload).SerializeToString()
    return v2.LENGTH_AND_HEADER.pack(4 + len(body), v2.header_word(v2.AUTH)) + body


v3_add = client_v3.add
v3_read = client_v3.read
v3_write_lac = client_v3.write_lac
v3_read_lac = client_v3.read_lac
v3_force = client_v3.force
v3_bookie_info = client_v3.bookie_info
v3_list_entries = client_v3.list_entries
v3_auth = client_v3.auth
v3_start_tls = client_v3.start_tls


class ClientCodec:
    """Decodes the bytes of a socket to responses. Entries are views into the buffers passed to `feed`."""

    __slots__ = ("_decode", "_frame_bytes_max", "_straddler")

    def __init__(self, generation: int, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        assert generation in (2, 3)
        self._frame_bytes_max = frame_bytes_max
        self._straddler = Straddler(frame_bytes_max)
        self._decode = self._decode_v2 if generation == 2 else self._decode_v3

    def feed(self, data: bytes) -> list[Response]:
        """Return the responses completed by `data`, in order. On PeerProtocolError, close the connection."""
        responses: list[Response] = []
        position = 0
        if self._straddler.pending:
            position, whole = self._straddler.take(data, position)
            if whole is None:
                return responses
            self._decode(whole, 0, responses)
        position = self._decode(data, position, responses)
        if position < len(data):
            self._straddler.take(data, position)
        return responses

    def _decode_v2(self, data: bytes, position: int, responses: list[Response]) -> int:
        end = len(data)
        view = memoryview(data)
        unpack, fixed_bytes = v2.RESPONSE.unpack_from, v2.RESPONSE.size
        acks: AddResponse | None = None
        acks_header = acks_code = acks_ledger = next_entry = 0
        while end - position >= 8:
            if end - position >= fixed_bytes:
                length, header, code, ledger, entry = unpack(data, position)
                if (
                    acks is not None
                    and entry == next_entry
                    and ledger == acks_ledger
                    and code == acks_code
                    and header == acks_header
                    and length == v2.ADD_RESPONSE_LENGTH
                ):
                    acks.count += 1
                    next_entry += 1
                    position += v2.ADD_RESPONSE_FRAME_BYTES
                    continue
            length, header = v2.LENGTH_AND_HEADER.unpack_from(data, position)
            check_length(length, self._frame_bytes_max)
            stop = position + 4 + length
            if stop > end:
                return position
            response = _v2_response(view[position:stop], header)
            responses.append(response)
            acks = response if isinstance(response, AddResponse) else None
            if acks is not None and (more := _acks_behind(data, stop, header, code, ledger, entry + 1)):
                acks.count += more
                position = stop + more * v2.ADD_RESPONSE_FRAME_BYTES
                acks = None
                continue
            if acks is not None:
                acks_header, acks_code, acks_ledger, next_entry = header, code, acks.ledger, acks.first + 1
            position = stop
        check_header_fits(data, position)
        return position

    def _decode_v3(self, data: bytes, position: int, responses: list[Response]) -> int:
        view = memoryview(data)
        while len(data) - position > 4:
            length = int.from_bytes(view[position : position + 4], "big", signed=True)
            check_length(length, self._frame_bytes_max)
            stop = position + 4 + length
            if stop > len(data):
                break
            responses.append(client_v3.response_of(parse(pb.Response, view[position + 4 : stop])))
            position = stop
        return position


def _acks_behind(data: bytes, position: int, header: int, code: int, ledger: int, first: int) -> int:
    """Count the responses to adds of consecutive ids from `first` on at `position`; 0 unless they fill `data`.

    The responses to a pipelining writer nearly always have this form, which is compared in one step.
    """
    count = (len(data) - position) // v2.ADD_RESPONSE_FRAME_BYTES
    if count < 2:
        return 0
    last = position + (count - 1) * v2.ADD_RESPONSE_FRAME_BYTES
    length = v2.ADD_RESPONSE_LENGTH
    if v2.RESPONSE.unpack_from(data, last) != (length, header, code, ledger, first + count - 1):
        return 0
    expected = add_replies(length, header, code, ledger, first, count)
    return count if data[position : last + v2.ADD_RESPONSE_FRAME_BYTES] == expected else 0


def _v2_response(frame: memoryview, header: int) -> Response:
    _, opcode, _ = v2.parse_header(header)
    if opcode == v2.AUTH:
        message = parse(pb.AuthMessage, frame[8:])
        return AuthResponse(Status.OK, message.authPluginName, message.payload)
    if len(frame) < v2.RESPONSE.size:
        raise PeerProtocolError(f"V2 response of {len(frame) - 4} bytes, opcode {opcode}")
    _, _, code, ledger, entry = v2.RESPONSE.unpack_from(frame)
    status = status_of_v2(code)
    if opcode == v2.ADD:
        return AddResponse(status, LedgerId(ledger), EntryId(entry))
    if opcode == v2.READ:
        data = frame[v2.RESPONSE.size :] if status is Status.OK else None
        return ReadResponse(status, LedgerId(ledger), EntryId(entry), data)
    if opcode == v2.BATCH_READ and len(frame) >= v2.BATCH_RESPONSE_FIXED_BYTES:
        request_id = int.from_bytes(frame[28:36], "big", signed=True)
        try:
            entries = PackedEntries(frame[v2.BATCH_RESPONSE_FIXED_BYTES :])
        except ValueError as error:
            raise PeerProtocolError(f"a batch response of {len(frame)} bytes: {error}") from error
        return BatchReadResponse(status, LedgerId(ledger), EntryId(entry), request_id, entries)
    raise PeerProtocolError(f"V2 response of {len(frame) - 4} bytes, opcode {opcode}")
