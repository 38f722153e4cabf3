"""The bookie's end of one connection: decodes requests and encodes responses. Never uses a socket.

A connection begins as V3. The first frame that is not a V3 request changes it to V2 permanently; a later V3 frame is a
protocol error.
"""

from collections.abc import Sequence

from quire_bookie.errors import PeerProtocolError
from quire_bookie.limits import FRAME_BYTES_MAX
from quire_bookie.model import Buffer, EntryId
from quire_bookie.wire import server_v2, server_v3, v2, v3_adds
from quire_bookie.wire.framing import Straddler, check_length
from quire_bookie.wire.messages import (
    AUTH_DISABLED_PLUGIN,
    AddRequest,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    ReadRequest,
    Request,
    StartTlsRequest,
    Status,
    V2Origin,
)
from quire_bookie.wire.proto import bookkeeper_pb2 as pb
from quire_bookie.wire.protobuf import parse
from quire_bookie.wire.status import V2_CODES


class ServerCodec:
    """Decodes the bytes of a socket to requests. Entries are views into the buffers passed to `feed`, or copies.

    With `batches`, plain small V2 adds of all ledgers are decoded to `AddBatch`es, otherwise to `AddRequest`s.
    """

    __slots__ = (
        "_batches",
        "_frame_bytes_max",
        "_is_v2",
        "_straddler",
        "failure",
        "has_more_plaintext",
        "start_tls",
        "takes_start_tls",
    )

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX, *, batches: bool = False) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._batches = batches
        self._straddler = Straddler(frame_bytes_max)
        self._is_v2 = False
        self.failure: PeerProtocolError | None = None
        """Set by the first bytes that violate the protocol: close the connection after answering earlier requests."""
        self.start_tls: StartTlsRequest | None = None
        """Set by START_TLS: nothing more is decoded before `upgraded` is called."""
        self.takes_start_tls = False
        """Whether START_TLS is accepted; it is refused otherwise."""
        self.has_more_plaintext = False
        """Whether plaintext bytes followed START_TLS. They are dropped, because TLS does not protect them."""

    def feed(self, data: bytes) -> list[Request]:
        """Return the requests completed by `data`, in order. After `failure` nothing more is read. Never raises."""
        requests: list[Request] = []
        if self.start_tls is not None:
            self.has_more_plaintext = True
        elif self.failure is None:
            try:
                self._feed(data, requests)
            except PeerProtocolError as error:
                self.failure = error
        return requests

    @property
    def held_bytes(self) -> int:
        """Bytes that have arrived of an incomplete frame."""
        return self._straddler.held_bytes

    @property
    def announced_bytes(self) -> int:
        """Bytes that the incomplete frame will have."""
        return self._straddler.announced_bytes

    def forget(self) -> None:
        """Drop the bytes of an incomplete frame."""
        self._straddler.forget()

    def upgraded(self) -> None:
        """Continue decoding: further bytes are protected by TLS."""
        self.start_tls, self.takes_start_tls = None, False

    def allow_frames(self, frame_bytes_max: int) -> None:
        """Change the largest size of further frames."""
        self._frame_bytes_max = frame_bytes_max
        self._straddler.allow_frames(frame_bytes_max)

    def _feed(self, data: bytes, requests: list[Request]) -> None:
        position = 0
        if self._straddler.pending:
            position, whole = self._straddler.take(data, position)
            if whole is None:
                return
            self._decode(whole, 0, requests)
        if self.start_tls is None:
            position = self._decode(data, position, requests)
        if self.start_tls is not None:
            self.has_more_plaintext = position < len(data)
        elif position < len(data):
            self._straddler.take(data, position)

    def _decode(self, data: bytes, position: int, requests: list[Request]) -> int:
        if not self._is_v2:
            position = self._decode_v3(data, position, requests)
        if self._is_v2:
            position = server_v2.decode(data, position, self._frame_bytes_max, requests, batches=self._batches)
        return position

    def _decode_v3(self, data: bytes, position: int, requests: list[Request]) -> int:
        view = memoryview(data)
        while len(data) - position > 4:
            length = int.from_bytes(view[position : position + 4], "big", signed=True)
            check_length(length, self._frame_bytes_max)
            stop = position + 4 + length
            if stop > len(data):
                break
            if data[position + 4] != server_v2.V3_FIRST_BYTE:
                self._is_v2 = True
                break
            if v3_adds.take_add(data, position + 4, stop, requests):
                position = stop
                continue
            request = server_v3.request_of(parse(pb.Request, view[position + 4 : stop]))
            if isinstance(request, StartTlsRequest):
                if self.takes_start_tls:
                    self.start_tls = request
                    return stop
                request = server_v3.refuse_start_tls(request)
            if not server_v3.extend_run(requests[-1] if requests else None, request):
                requests.append(request)
            position = stop
        return position


def encode_adds(request: AddRequest, status: Status) -> bytes:
    """Encode the responses to every add of a run."""
    if request.transactions is None:
        return server_v2.encode_adds(request, status)
    return server_v3.encode_adds(request, status)


def encode_ok_adds(requests: Sequence[AddRequest]) -> bytes:
    """Encode OK responses to every add of several runs."""
    ok, pack, length = V2_CODES[Status.OK], v2.RESPONSE.pack, v2.ADD_RESPONSE_LENGTH
    return b"".join(
        [
            pack(length, request.header, ok, request.reply_ledger, request.reply_first)
            if request.transactions is None and len(request.run.entries) == 1
            else encode_adds(request, Status.OK)
            for request in requests
        ]
    )


def encode_read(
    request: ReadRequest,
    status: Status,
    data: Buffer | None = None,
    max_lac: EntryId | None = None,
    lac_update_ms: int | None = None,
    *,
    entry: EntryId | None = None,
) -> list[Buffer]:
    """Encode the response to a read as buffers to write one after the other.

    V3 only: `max_lac` for plain reads answered OK, `lac_update_ms` for a long poll that an update woke, `entry` if the
    response has another id than the request.
    """
    origin = request.origin
    if isinstance(origin, V2Origin):
        return server_v2.encode_read(origin, request.ledger, request.entry, status, data)
    named = request.entry if entry is None else entry
    return [server_v3.encode_read(origin, request.ledger, named, status, data, max_lac, lac_update_ms)]


def encode_batch(request: BatchReadRequest, status: Status, entries: Sequence[Buffer] = ()) -> list[Buffer]:
    """Encode the response to a batch read as buffers to write one after the other."""
    return server_v2.encode_batch(request, status, entries)


def entry_bytes_within(request: BatchReadRequest, batch_bytes_max: int) -> int:
    """Return the bytes of entries and their 4-byte lengths that the response to a batch read may have; may be negative.

    The first entry is sent regardless of its size.
    """
    return min(request.bytes_max, batch_bytes_max) - v2.BATCH_RESPONSE_FIXED_BYTES


def encode_auth_disabled(request: AuthRequest) -> bytes:
    """Encode the response of a bookie without authentication: the client may continue."""
    return encode_auth(request, AuthResponse(Status.OK, AUTH_DISABLED_PLUGIN, b""))


def encode_auth(request: AuthRequest, answer: AuthResponse) -> bytes:
    """Encode a step of the authentication exchange."""
    origin = request.origin
    if isinstance(origin, V2Origin):
        return server_v2.encode_auth(origin, answer)
    return server_v3.encode_auth(origin, answer)
