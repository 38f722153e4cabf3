"""Who may call which path of the admin HTTP port of a bookie or of auto-recovery.

    probes                        everybody
    /metrics                      everybody, unless authenticateMetricsEndpoint asks for a role
    reads (GET)                   a role that may connect to the bookie's port
    everything that changes       a role of httpServerAdminRoles; while that is empty, as reads
    no role can be proved         only from this machine, unless httpServerAdminRemote opens the port

A role comes from a token (`Authorization: Bearer`) where the bookie's port takes tokens, or from a client certificate.
Never logs a token.
"""

import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Middleware

from quire_bookie.admin.answers import Handler, failure
from quire_bookie.client.security import TOKEN_PLUGIN
from quire_bookie.server.security.auth import Admitted, AuthProvider, Peer, subject_of

_log = logging.getLogger("quire.admin")
PROBES = frozenset({"/healthz", "/heartbeat", "/readyz", "/api/v1/bookie/is_ready"})
METRICS = "/metrics"
READS = frozenset({"GET", "HEAD"})
CHANGING_READS = frozenset({"/api/v1/bookie/sanity"})
"""Paths that write although they are asked by GET: BookKeeper's names."""


class NotProvedError(Exception):
    """The client did not prove a role; the text may be sent to it."""


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The rules of one port. `provider`: of the bookie's own port; None: no role can be proved.

    `admins`: the roles that may change something; empty: all. `remote`: other machines need no role.
    """

    provider: AuthProvider | None = None
    admins: Sequence[str] = ()
    remote: bool = False
    metrics_need_role: bool = False

    def middleware(self) -> Middleware:
        """To be put behind the one that turns errors into answers."""

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            refused = self._refusal(request)
            if refused is None:
                return await handler(request)
            _log.warning(
                "%s %r of %s is refused: HTTP %d", request.method, request.path, request.remote, refused.status
            )
            return refused

        return checked

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self.is_open(request.path):
            return None
        try:
            role = self._role(request)
        except NotProvedError as error:
            refused = failure(401, f"HTTP 401 Unauthorized: {error}")
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        if role is None:
            if self.remote or is_local(request):
                return None
            return failure(
                403,
                "this port answers other machines only to probes and /metrics, because it asks for no authentication: "
                "ask from the machine itself, turn token authentication on, or set httpServerAdminRemote=true",
            )
        if self.admins and role not in self.admins and needs_admin(request.method, request.path):
            return failure(403, f"role {role!r} may not change anything here: it is not among httpServerAdminRoles")
        return None

    def is_open(self, path: str) -> bool:
        """Whether a path needs no role."""
        return path in PROBES or (path == METRICS and not self.metrics_need_role)

    def _role(self, request: web.Request) -> str | None:
        """The role that the client proves; None when this port has no way to prove one. NotProvedError."""
        if self.provider is None:
            return None
        address = request.remote or ""
        if self.provider.plugin == TOKEN_PLUGIN:
            kind, _, token = request.headers.get("Authorization", "").partition(" ")
            if kind.lower() != "bearer" or not token.strip():
                raise NotProvedError("show a token: Authorization: Bearer <token> (of our commands: QUIRE_TOKEN)")
            step = self.provider.begin(Peer(address)).process(token.strip().encode())
            if isinstance(step, Admitted):
                return step.role
            _log.warning("a token of %s is refused: %s", address, getattr(step, "reason", "it is not enough"))
            raise NotProvedError("the token is refused; the log of this process has the reason")
        transport = request.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        found = self.provider.begin(Peer(address)).secured(Peer(address, True, subject_of(certificate)))
        return found.role if isinstance(found, Admitted) else None


def needs_admin(method: str, path: str) -> bool:
    """Whether a request changes something, so that it needs more than a role that may read."""
    return method not in READS or path in CHANGING_READS


def is_local(request: web.Request) -> bool:
    """Whether the client is on this machine, by the address of its connection; headers of proxies do not count."""
    transport = request.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    if not peer:
        return False
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
