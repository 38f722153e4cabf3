"""Checks the origin of requests to an HTTP port, for bookies, auto-recovery and brokers.

A browser sends requests to this machine on behalf of any site that its user visits. Requests that a page of another
site can send are refused: by their origin, and by body types that a browser sends across sites without asking.
"""

import ipaddress
import logging
from urllib.parse import urlsplit

from aiohttp import web

from quire_bookie.admin.answers import Handler, failure
from quire_bookie.dataclass import dataclass

_log = logging.getLogger("quire.admin")

PROXIED = "Quire-Authorization"
"""Header used instead of Authorization, which the proxy of a Kubernetes API server consumes."""


@web.middleware
async def from_no_other_site(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse requests from pages of other sites with 403, and bodies that are not JSON or are compressed with 415."""
    reason = _refusal_of_site(request)
    if reason is not None:
        _log.warning("refused %s %r of %s: %s", request.method, request.path, request.remote, reason)
        return failure(403, reason)
    if request.body_exists and not _is_json(request.content_type):
        return failure(415, f"the body has the type {request.content_type}: send it as Content-Type: application/json")
    encoding = request.headers.get("Content-Encoding", "identity")
    if request.body_exists and encoding.lower() != "identity":
        return failure(415, f"the body has the Content-Encoding {encoding!r}: send it unencoded, without that header")
    return await handler(request)


def _refusal_of_site(request: web.Request) -> str | None:
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "")
    if site in ("cross-site", "same-site"):
        return f"the request is from a page of another site (Sec-Fetch-Site: {site}): open the address or use a command"
    if origin is not None and _authority(origin) != request.headers.get("Host", "").lower():
        return f"the request is from a page of {origin!r}, a site other than the Host of the request: use a command"
    return None


def _authority(origin: str) -> str:
    """Return host and port of an origin; empty for an origin without a host, such as `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The host names allowed in requests: a site can make its own name resolve to this machine (DNS rebinding).

    Addresses and names without a dot are always allowed, since no site owns them. `names`: further ones;
    `*.example.com` allows all names below a domain, `*` every name.
    """

    names: tuple[str, ...] = ()

    def refusal(self, request: web.Request) -> str | None:
        """Return why the name in the Host header is refused, or None if it is allowed."""
        host = request.headers.get("Host")
        if host is None or self._allows(host):
            return None
        return (
            f"this port does not serve the host name {host!r}: use its address, or add the name to "
            "httpServerAllowedHosts (without authentication another site could make its name resolve to this machine)"
        )

    def _allows(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if not name:
            return False
        if "." not in name or name.endswith(".localhost") or _address_in(name) is not None:
            return True
        return any(_matches(name, wanted.lower()) for wanted in self.names)


def _matches(name: str, wanted: str) -> bool:
    return wanted in ("*", name) or (wanted.startswith("*.") and name.endswith(wanted[1:]))


def _address_in(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an address without its zone; None if the text is not an address."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def authorization_of(request: web.Request) -> str:
    """Return the header with which a client proves its role; empty if there is none."""
    return request.headers.get(PROXIED) or request.headers.get("Authorization") or ""


def refusal_of_origin(request: web.Request, *, remote: bool, open_paths: str) -> str | None:
    """Return why a port without authentication refuses this client, or None.

    `remote`: httpServerAdminRemote, which opens the port; `open_paths`: the paths that every machine may request.
    """
    if remote or is_local(request):
        return None
    return (
        f"this port serves only {open_paths} to other machines, because authentication is off: "
        "send the request from the machine itself, turn on token authentication, or set httpServerAdminRemote=true"
    )


def is_local(request: web.Request) -> bool:
    """Return whether the client is on this machine, by the address of its connection; ignores headers of proxies."""
    transport = request.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    address = _address_in(str(peer[0])) if peer else None
    if address is None:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
