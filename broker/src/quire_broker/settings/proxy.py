"""Declares the limits of a proxy, under the keys of Pulsar's proxy where it has them."""

from quire_bookie.dataclass import dataclass
from quire_bookie.settings.declared import MILLISECONDS, setting
from quire_broker import limits


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Limits of a proxy. 0: no limit of connections."""

    connections_max: int = setting(
        limits.CONNECTIONS_MAX,
        "maxConcurrentInboundConnections",
        "concurrent connections of clients; 0: no limit",
        short="max_inbound_connections",
        ge=0,
    )
    connections_per_address_max: int = setting(
        limits.CONNECTIONS_PER_ADDRESS_MAX,
        "maxConcurrentInboundConnectionsPerIp",
        "the same of one client address; 0: no limit",
        short="max_inbound_connections_per_address",
        ge=0,
    )
    lookups_max: int = setting(
        limits.PROXY_LOOKUPS_MAX,
        "maxConcurrentLookupRequests",
        "lookups of all clients that wait for a broker; further ones are refused",
        short="max_lookups",
        ge=1,
    )
    lookup_timeout_s: float = setting(
        limits.PROXY_LOOKUP_S,
        "proxyLookupTimeoutMs",
        "time for one lookup with its redirects, in ms",
        unit=MILLISECONDS,
        ge=100,
    )
    handshake_timeout_s: float = setting(
        limits.PROXY_HANDSHAKE_S,
        "proxyHandshakeTimeoutMs",
        "a connection without CONNECT after this time is closed, in ms",
        unit=MILLISECONDS,
        ge=100,
    )
    connect_timeout_s: float = setting(
        limits.PROXY_CONNECT_S,
        "brokerProxyConnectTimeoutMs",
        "time for a broker to accept a connection and its CONNECT, in ms",
        unit=MILLISECONDS,
        ge=100,
    )
    keep_alive_s: float = setting(
        limits.KEEP_ALIVE_INTERVAL_S,
        "keepAliveIntervalSeconds",
        "PING after this time without traffic, in s, on connections for lookups; brokers send it on all others",
        short="keep_alive_interval_s",
        kind=int,
        ge=1,
    )
    buffer_bytes: int = setting(
        limits.PROXY_BUFFER_BYTES,
        "proxyBufferBytes",
        "bytes that wait in one direction of a connection; then the proxy stops reading",
        ge=8192,
    )
    http_timeout_s: float = setting(
        limits.PROXY_HTTP_S,
        "httpProxyTimeout",
        "time for a broker to begin or continue its response to a forwarded request, in ms",
        unit=MILLISECONDS,
        ge=100,
    )
    http_requests_max: int = setting(
        limits.PROXY_HTTP_REQUESTS_MAX,
        "httpProxyMaxRequests",
        "requests that are forwarded at once; further ones get 503",
        ge=1,
    )
    http_body_bytes_max: int = setting(
        limits.PROXY_HTTP_BODY_BYTES_MAX,
        "httpInputMaxReplayBufferSize",
        "largest body of a forwarded request, in bytes; it is kept, to follow a redirect",
        ge=1024,
    )
    websockets_max: int = setting(
        limits.WEBSOCKET_SESSIONS_MAX,
        "webSocketMaxSessions",
        "WebSockets that are joined with one of a broker at once; further ones get 503",
        short="web_socket_max_sessions",
        ge=1,
    )
    drain_s: float = setting(
        limits.PROXY_DRAIN_S,
        "proxyShutdownTimeoutMs",
        "a proxy that is stopped closes the connections of its clients in even steps over this time, in ms",
        unit=MILLISECONDS,
        ge=0,
    )
