"""Decides which clients may call a route of the admin HTTP port of a bookie or of auto-recovery, by its `Need`.

    NOTHING             every client
    METRICS             every client, unless authenticateMetricsEndpoint requires a role
    READ                a role that may connect (authorizedRoles); also for paths without a route
    CHANGE              a role of httpServerAdminRoles, else of authorizedRoles; both empty: no role
    no authentication   only from this machine, unless httpServerAdminRemote opens the port; METRICS and NOTHING: all

A role comes from a token (`Authorization: Bearer`) if the process uses tokens, otherwise from a client certificate.
Never logs a token.
"""

import logging
from collections.abc import Sequence
from dataclasses import field

from aiohttp import web
from aiohttp.typedefs import Middleware

from quire_bookie.admin.answers import Handler, failure
from quire_bookie.admin.origin import AllowedHosts, authorization_of, refusal_of_origin
from quire_bookie.admin.routes import ROUTES, Need, route_of
from quire_bookie.dataclass import dataclass
from quire_bookie.server.security.auth import Admitted, AuthProvider, Peer, subject_of
from quire_bookie.settings.http import HttpLimits
from quire_bookie.settings.tls import TOKEN_PLUGIN

_log = logging.getLogger("quire.admin")
NO_ADMINS = (
    "httpServerAdminRoles and authorizedRoles are empty, so no role may make changes over HTTP; "
    "set httpServerAdminRoles to the roles of operators and of auto-recovery"
)


class NotProvedError(Exception):
    """The client did not prove a role; the text may be sent to the client."""


@dataclass(frozen=True, slots=True)
class AdminAccess:
    """Holds the rules of one port. `provider`: how a client proves its role; None: authentication is off.

    `admins`: the roles that may make changes; empty: none. `remote`: without a provider, other machines may connect.
    """

    provider: AuthProvider | None = None
    admins: Sequence[str] = ()
    remote: bool = False
    metrics_need_role: bool = False
    hosts: AllowedHosts = field(default_factory=AllowedHosts)
    """Not used if tokens prove roles."""
    bounds: HttpLimits = field(default_factory=HttpLimits)

    def middleware(self) -> Middleware:
        """Return the middleware; it must be inside the one that turns errors into responses."""

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            refused = self._refusal(request)
            if refused is None:
                return await handler(request)
            _log.warning("refused %s %r of %s: HTTP %d", request.method, request.path, request.remote, refused.status)
            return refused

        return checked

    def _refusal(self, request: web.Request) -> web.Response | None:
        route = route_of(request, ROUTES)
        need = Need.READ if route is None else route.need
        if need is Need.NOTHING or (need is Need.METRICS and not self.metrics_need_role):
            return None
        if self.provider is None or self.provider.plugin != TOKEN_PLUGIN:  # browsers send certificates for any page
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
        if need is Need.CHANGE and role not in self.admins:
            reason = "it is not in httpServerAdminRoles" if self.admins else NO_ADMINS
            return failure(403, f"role {role!r} may not make changes: {reason}")
        return None

    def _role(self, request: web.Request) -> str | None:
        """Return the role that the client proves; None if authentication is off. NotProvedError."""
        if self.provider is None:
            return None
        address = request.remote or ""
        if self.provider.plugin == TOKEN_PLUGIN:
            kind, _, token = authorization_of(request).partition(" ")
            if kind.lower() != "bearer" or not token.strip():
                raise NotProvedError("send a token: Authorization: Bearer <token> (Quire's commands: QUIRE_TOKEN)")
            step = self.provider.begin(Peer(address)).process(token.strip().encode())
            if isinstance(step, Admitted):
                return step.role
            _log.warning("refused a token of %s: %s", address, getattr(step, "reason", "it is not sufficient"))
            raise NotProvedError("the token is refused; the reason is in the log of this process")
        transport = request.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        found = self.provider.begin(Peer(address)).secured(Peer(address, True, subject_of(certificate)))
        return found.role if isinstance(found, Admitted) else None
