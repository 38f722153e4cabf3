"""Who may call which path of the admin HTTP port of a bookie or of auto-recovery.

    probes                        everybody
    /metrics                      everybody, unless authenticateMetricsEndpoint asks for a role
    reads (GET)                   a role that may connect (authorizedRoles)
    everything that changes       a role of httpServerAdminRoles, else of authorizedRoles; both empty: no role
    no role can be proved         only from this machine, unless httpServerAdminRemote opens the port

A role comes from a token (`Authorization: Bearer`) where the process takes tokens, else from a client certificate.
Never logs a token.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Middleware

from quire_bookie.admin.answers import Handler, failure
from quire_bookie.admin.http_limits import HttpLimits
from quire_bookie.admin.origin import AllowedHosts, authorization_of, refusal_of_origin
from quire_bookie.client.security import TOKEN_PLUGIN
from quire_bookie.server.security.auth import Admitted, AuthProvider, Peer, subject_of

_log = logging.getLogger("quire.admin")
PROBES = frozenset({"/healthz", "/heartbeat", "/readyz", "/api/v1/bookie/is_ready"})
METRICS = "/metrics"
READS = frozenset({"GET", "HEAD"})
NO_ADMINS = (
    "httpServerAdminRoles and authorizedRoles are empty, so that no role may change anything over HTTP; "
    "set httpServerAdminRoles to the roles of operators and of auto-recovery"
)
CHANGING_READS = frozenset({"/api/v1/bookie/sanity"})
"""Paths that write although they are asked by GET: BookKeeper's names."""


class NotProvedError(Exception):
    """The client did not prove a role; the text may be sent to it."""


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """The rules of one port. `provider`: how a client proves its role; None: no role can be proved.

    `admins`: the roles that may change something; empty: none may. `remote`: without a provider, other machines may.
    """

    provider: AuthProvider | None = None
    admins: Sequence[str] = ()
    remote: bool = False
    metrics_need_role: bool = False
    hosts: AllowedHosts = field(default_factory=AllowedHosts)
    """Of no account where tokens prove roles."""
    bounds: HttpLimits = field(default_factory=HttpLimits)

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
        if self.provider is None or self.provider.plugin != TOKEN_PLUGIN:  # a certificate is shown for any page
            reason = self.hosts.refusal(request)
            if reason is not None:
                return failure(403, reason)
        try:
            role = self._role(request)
        except NotProvedError as error:
            refused = failure(401, f"HTTP 401 Unauthorized: {error}")
            refused.headers["WWW-Authenticate"] = "Bearer"
            return refused
        if role is None:
            reason = refusal_of_origin(request, remote=self.remote, open_paths="probes and /metrics")
            return None if reason is None else failure(403, reason)
        if role not in self.admins and needs_admin(request.method, request.path):
            reason = "it is not among httpServerAdminRoles" if self.admins else NO_ADMINS
            return failure(403, f"role {role!r} may not change anything here: {reason}")
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
            kind, _, token = authorization_of(request).partition(" ")
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
