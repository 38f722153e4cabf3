"""Checks where a request to an HTTP port comes from; for bookies, auto-recovery and brokers alike.

A browser sends requests to this machine for any site that its user visits. Nothing a page of another site can send is
acted on: its origin is refused, and so is a body of the types that need no leave of ours to be sent across sites.
"""

import ipaddress
import logging
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import web

from quire_bookie.admin.answers import Handler, failure

_log = logging.getLogger("quire.admin")

PROXIED = "Quire-Authorization"
"""Header that stands for Authorization: the proxy of a Kubernetes API server takes that one for itself."""


@web.middleware
async def from_no_other_site(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse what a page of another site had its browser send: 403; a body that is not JSON, or is compressed: 415."""
    reason = _refusal_of_site(request)
    if reason is not None:
        _log.warning("%s %r of %s is refused: %s", request.method, request.path, request.remote, reason)
        return failure(403, reason)
    if request.body_exists and not _is_json(request.content_type):
        return failure(415, f"the body has the type {request.content_type}: send it as Content-Type: application/json")
    encoding = request.headers.get("Content-Encoding", "identity")
    if request.body_exists and encoding.lower() != "identity":
        return failure(415, f"the body has the Content-Encoding {encoding!r}: send it as it is, without that header")
    return await handler(request)


def _refusal_of_site(request: web.Request) -> str | None:
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site", "")
    if site in ("cross-site", "same-site"):
        return f"a page of another site asks (Sec-Fetch-Site: {site}): open the address itself, or use a command"
    if origin is not None and _place(origin) != request.headers.get("Host", "").lower():
        return f"a page of {origin!r} asks, which is another site than the Host of the request: use a command"
    return None


def _place(origin: str) -> str:
    """Host and port of an origin; empty for one that names none, such as `null`."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_json(content_type: str) -> bool:
    return content_type == "application/json" or content_type.endswith("+json")


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """The names by which a port may be asked: a site can have its own name lead to this machine (DNS rebinding).

    Addresses and names of one part are always good, since no site owns them. `names`: further ones, `*.example.com`
    for all below a domain, `*` for every name.
    """

    names: tuple[str, ...] = ()

    def refusal(self, request: web.Request) -> str | None:
        """Why the name in the header Host is not taken; None: it is."""
        host = request.headers.get("Host")
        if host is None or self._takes(host):
            return None
        return (
            f"this port is not asked by the name {host!r}: ask by its address, or add the name to "
            "httpServerAllowedHosts (without authentication another site could lead its name here)"
        )

    def _takes(self, host: str) -> bool:
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
    """The address, without its zone; None: the text is something else."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def authorization_of(request: web.Request) -> str:
    """The header by which a client proves its role; empty: it shows none."""
    return request.headers.get(PROXIED) or request.headers.get("Authorization") or ""


def refusal_of_origin(request: web.Request, *, remote: bool, open_paths: str) -> str | None:
    """Why a port that proves no role does not answer this client; None: it does.

    `remote`: httpServerAdminRemote, which opens the port; `open_paths`: the paths that every machine may ask.
    """
    if remote or is_local(request):
        return None
    return (
        f"this port answers other machines only {open_paths}, because it asks for no authentication: "
        "ask from the machine itself, turn token authentication on, or set httpServerAdminRemote=true"
    )


def is_local(request: web.Request) -> bool:
    """Whether the client is on this machine, by the address of its connection; headers of proxies do not count."""
    transport = request.transport
    peer = None if transport is None else transport.get_extra_info("peername")
    address = _address_in(str(peer[0])) if peer else None
    if address is None:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
