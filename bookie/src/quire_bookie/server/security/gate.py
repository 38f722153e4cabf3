"""Answers the requests of a connection before it is authenticated, by BookKeeper's rules. Pure.

Until the client is authenticated, and has begun TLS if that is required, every request is answered here:

| request | V3 | V2 |
|---|---|---|
| AUTH of our plugin | next step, or unauthorized and closed | next step, or closed |
| AUTH of another plugin | unauthorized | closed |
| add, read | unauthorized | unauthorized |
| anything else | unauthorized | closed |

*Unauthorized* over V3 is a response without the operation's body. START_TLS comes here only if there is no TLS.
"""

from quire_bookie.dataclass import dataclass
from quire_bookie.server.security.auth import Admitted, AuthProvider, Peer, Refused, Step
from quire_bookie.wire import server_codec, server_v2, server_v3
from quire_bookie.wire.messages import (
    AddBatch,
    AddRequest,
    AuthRequest,
    AuthResponse,
    ReadRequest,
    ReadRun,
    RefusedRequest,
    Request,
    Status,
    V2Origin,
    V3Origin,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The bytes to send, and whether to close afterwards. `refused`: the reason of a failed exchange, for the log."""

    answer: bytes = b""
    close: bool = False
    refused: str = ""


class Gate:
    """Answers the requests of one connection until `is_open`: then it is authenticated and uses TLS as required."""

    __slots__ = ("_exchange", "_plugin", "_secure", "_tls_required", "role")

    def __init__(self, provider: AuthProvider | None, peer: Peer, *, tls_required: bool) -> None:
        self._exchange = None if provider is None else provider.begin(peer)
        self._plugin = "" if provider is None else provider.plugin
        self._tls_required = tls_required
        self._secure = peer.secure
        self.role: str | None = None
        """The role of an authenticated client."""

    @property
    def is_open(self) -> bool:
        """Whether requests may pass to the handler."""
        return (self._secure or not self._tls_required) and (self._exchange is None or self.role is not None)

    def is_withdrawn(self) -> bool:
        """Whether the client's credential is no longer valid."""
        return self._exchange is not None and self._exchange.is_withdrawn()

    def secured(self, peer: Peer) -> Refused | None:
        """Handle the change of the connection to TLS. After a refusal the client may still authenticate by messages."""
        self._secure = True
        step = None if self._exchange is None or self.role is not None else self._exchange.secured(peer)
        if isinstance(step, Admitted):
            self.role = step.role
        return step if isinstance(step, Refused) else None

    def answer(self, request: Request) -> Verdict:
        """Return the response to a request while the gate is closed."""
        if isinstance(request, AuthRequest) and (self._secure or not self._tls_required):
            return self._authenticate(request)
        return unauthorized(request)

    def _authenticate(self, request: AuthRequest) -> Verdict:
        over_v2 = isinstance(request.origin, V2Origin)
        if self._exchange is None:
            return Verdict(server_codec.encode_auth_disabled(request))
        if request.plugin != self._plugin:
            reason = "it uses another authentication plugin"
            return Verdict(close=True, refused=reason) if over_v2 else Verdict(_v3_refusal(request), refused=reason)
        step: Step = self._exchange.process(request.payload)
        if isinstance(step, Refused):
            return Verdict(b"" if over_v2 else _v3_refusal(request), close=True, refused=step.reason)
        if isinstance(step, Admitted):
            self.role = step.role
        return Verdict(server_codec.encode_auth(request, AuthResponse(Status.OK, self._plugin, step.payload)))


def unauthorized(request: Request) -> Verdict:
    """Return the refusal of a request of an unauthenticated client."""
    if isinstance(request, AddBatch):
        return Verdict(server_v2.encode_rows(request.rows, request.header, Status.UNAUTHORIZED))
    if isinstance(request, AddRequest):
        if request.transactions is None:
            return Verdict(server_codec.encode_adds(request, Status.UNAUTHORIZED))
        operation = server_v3.ADD_OPERATION
        answers = [_status(V3Origin(operation, transaction)) for transaction in request.transactions]
        return Verdict(b"".join(answers))
    origin = request.origin
    if isinstance(origin, V3Origin):
        if isinstance(request, RefusedRequest) and origin.operation == server_v3.START_TLS_OPERATION:
            return Verdict(request.answer)
        return Verdict(_status(origin))
    if isinstance(request, ReadRun):
        return Verdict(b"".join(server_codec.encode_read(one, Status.UNAUTHORIZED)[0] for one in request.requests()))
    if isinstance(request, ReadRequest):
        return Verdict(b"".join(server_codec.encode_read(request, Status.UNAUTHORIZED)))
    if isinstance(request, RefusedRequest) and (answer := server_v2.with_status(request, Status.UNAUTHORIZED)):
        return Verdict(answer)
    return Verdict(close=True)


def _v3_refusal(request: AuthRequest) -> bytes:
    assert isinstance(request.origin, V3Origin)
    return _status(request.origin)


def _status(origin: V3Origin) -> bytes:
    return server_v3.encode_status(origin, Status.UNAUTHORIZED)
