"""Codec of a bookie's registration value: the addresses of its protocols. Pure.

Format: BookieServiceInfoFormat in protobuf's binary format. Clients look for the endpoint whose protocol is
`bookie-rpc`. An empty value is the legacy form: the id itself is `host:port`.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple

from google.protobuf.message import DecodeError

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_bookie.metadata.proto import nodes_pb2
from quire_bookie.model import BookieId

BOOKIE_RPC = "bookie-rpc"
HTTP = "http"
"""Also with TLS, which the extension shows."""
TLS = "tls"
"""The extension of an endpoint with TLS."""
MACHINE = "quire/machine"
"""The property that names the bookie's machine; stock clients ignore it."""
_BOOKIE_ENDPOINT_ID = "bookie"
_PORT_MAX = 65535


class BookieAddress(NamedTuple):
    """Address on which a bookie listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One protocol of a bookie."""

    endpoint_id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """All endpoints of a bookie, and the other properties that it publishes."""

    endpoints: tuple[Endpoint, ...]
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def bookie_endpoint(self) -> Endpoint | None:
        """The endpoint of the BookKeeper protocol."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == BOOKIE_RPC), None)

    @property
    def http_endpoint(self) -> Endpoint | None:
        """The endpoint of the admin HTTP server, if it has one."""
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == HTTP), None)

    @property
    def machine(self) -> str:
        """The machine that the bookie publishes, else the host of its address; empty if it has neither."""
        named = self.properties.get(MACHINE)
        if named:
            return named
        endpoint = self.bookie_endpoint
        return "" if endpoint is None else endpoint.host.lower()


def bookie_endpoint(host: str, port: int, *, tls: bool = False) -> Endpoint:
    """Return the endpoint that every bookie publishes."""
    return Endpoint(_BOOKIE_ENDPOINT_ID, host, port, BOOKIE_RPC, extensions=(TLS,) if tls else ())


def http_endpoint(host: str, port: int, *, tls: bool = False) -> Endpoint:
    """Return the endpoint of the admin HTTP server."""
    return Endpoint("httpserver", host, port, HTTP, extensions=(TLS,) if tls else ())


def encode_service_info(info: BookieServiceInfo) -> bytes:
    """Encode the registration's value."""
    message = nodes_pb2.BookieServiceInfoFormat(
        endpoints=[
            nodes_pb2.BookieServiceInfoFormat.Endpoint(
                id=endpoint.endpoint_id,
                port=endpoint.port,
                host=endpoint.host,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
            for endpoint in info.endpoints
        ],
        properties=dict(info.properties),
    )
    return message.SerializeToString(deterministic=True)


def decode_service_info(value: bytes, bookie: BookieId) -> BookieServiceInfo:
    """Decode a registration's value. MetadataFormatError if it is invalid."""
    if not value:
        address = _address_of_id(bookie)
        return BookieServiceInfo((bookie_endpoint(address.host, address.port),))
    message = nodes_pb2.BookieServiceInfoFormat()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise MetadataFormatError(f"the registration of bookie {bookie} does not parse: {error}") from error
    endpoints = tuple(
        Endpoint(part.id, part.host, part.port, part.protocol, tuple(part.auth), tuple(part.extensions))
        for part in message.endpoints
    )
    if not all(0 <= endpoint.port <= _PORT_MAX for endpoint in endpoints):
        raise MetadataFormatError(f"the registration of bookie {bookie} contains an invalid port")
    return BookieServiceInfo(endpoints, dict(message.properties))


def _address_of_id(bookie: BookieId) -> BookieAddress:
    host, colon, port = bookie.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > _PORT_MAX:
        raise MetadataFormatError(f"bookie {bookie} registered without an address, and its id is not host:port")
    return BookieAddress(host, int(port))
