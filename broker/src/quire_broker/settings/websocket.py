"""Declares the settings of WebSocket producers, consumers and readers, with Pulsar's names."""

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import MIB
from quire_bookie.settings.declared import MILLISECONDS, setting
from quire_broker import limits


@dataclass(frozen=True, slots=True)
class WebSocketSettings:
    """Whether a broker serves WebSockets on its HTTP ports, and their bounds."""

    enabled: bool = setting(
        False,
        "webSocketServiceEnabled",
        "serve WebSocket producers, consumers and readers under /ws/ of the HTTP ports",
        short="web_socket_service",
    )
    text_bytes_max: int = setting(
        limits.WEBSOCKET_TEXT_BYTES_MAX,
        "webSocketMaxTextFrameSize",
        "largest text of a WebSocket client, in bytes; a payload is a third longer in it",
        short="web_socket_max_text_frame_size_bytes",
        ge=1024,
        le=8 * MIB,
    )
    idle_s: float = setting(
        limits.WEBSOCKET_IDLE_S,
        "webSocketSessionIdleTimeoutMillis",
        "a session without any frame for this time is closed, in ms",
        short="web_socket_session_idle_timeout_ms",
        unit=MILLISECONDS,
        ge=1000,
    )
    ping_s: int = setting(
        -1,
        "webSocketPingDurationSeconds",
        "interval of pings to WebSocket clients, in s; 0 or -1: none",
        short="web_socket_ping_s",
        ge=-1,
        le=86_400,
    )
    sessions_max: int = setting(
        limits.WEBSOCKET_SESSIONS_MAX,
        "webSocketMaxSessions",
        "concurrent WebSocket sessions; others are answered 503",
        short="web_socket_max_sessions",
        ge=1,
    )
