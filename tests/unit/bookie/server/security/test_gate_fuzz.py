"""Fuzzes an unauthenticated connection: no request reaches the handler, nothing raises, memory stays small."""

import asyncio
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from quire_bookie.server.requests.connections import Connection, OpenConnections
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.tokens import TokenAuthentication
from quire_bookie.settings.security import ConnectionLimitSettings
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.tokens.checks import OpaqueTokens
from quire_bookie.wire import client_codec, client_v3
from tests.unit.bookie.server.security.served import FIRST, LEDGER, Agreeable, start_tls, v2_add, v2_read

FRAME_BYTES_MAX = 4096
FRAMES = [
    v2_add(),
    v2_read(),
    client_codec.v2_read(LEDGER, FIRST, fence_with=bytes(20)),
    client_codec.v2_batch_read(LEDGER, FIRST, 1, 10, 1000),
    client_codec.v2_auth("token", b"0123456789abcdeX"),
    client_codec.v2_auth("other", b""),
    client_v3.add(1, LEDGER, FIRST, bytes(20), bytes(40)),
    client_v3.read(2, LEDGER, FIRST),
    client_v3.auth(3, "token", b"\xff\xfe"),
    client_v3.force(4, LEDGER),
    start_tls(5),
]


class Socket:
    """Counts written bytes."""

    def __init__(self) -> None:
        self.written_bytes = 0
        self.closed = False

    def get_write_buffer_size(self) -> int:
        """Return 0: all bytes are sent."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits."""

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """Return a peer name."""
        return "192.0.2.1", 1

    def is_closing(self) -> bool:
        """Whether it was closed."""
        return self.closed

    def pause_reading(self) -> None:
        """Do nothing."""

    def write(self, data: bytes) -> None:
        """Count the bytes."""
        self.written_bytes += len(data)

    def close(self) -> None:
        """Close."""
        self.closed = True

    abort = close


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Draw frames, some with a byte flipped, cut into buffers at random places."""
    data = bytearray()
    for frame in draw(st.lists(st.sampled_from(FRAMES), max_size=12)):
        part = bytearray(frame)
        if draw(st.booleans()):
            part[draw(st.integers(0, len(part) - 1))] ^= draw(st.integers(1, 255))
        data += part
    data += draw(st.binary(max_size=50))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return [bytes(data[start:stop]) for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@settings(max_examples=400, deadline=None)
@given(streams())
def test_no_request_passes_the_gate_and_nothing_raises(buffers: list[bytes]) -> None:
    async def go() -> None:
        guard = Guard(
            ConnectionLimitSettings(unauthenticated_frame_bytes_max=FRAME_BYTES_MAX),
            provider=TokenAuthentication(OpaqueTokens({"0123456789abcdef": "broker"})),
        )
        handler, socket = Agreeable(), Socket()
        connection = Connection(handler, OpenConnections(), ServiceSettings(), guard)
        connection.connection_made(cast(asyncio.Transport, socket))
        for buffer in buffers:
            connection.data_received(buffer)
            connection.flush()
            assert connection.unanswered == 0, "every request is answered at once"
            assert connection._codec._straddler._have <= FRAME_BYTES_MAX + 4
        assert handler.requests == []
        assert guard.stats.authenticated == 0
        assert socket.written_bytes <= 40 * sum(map(len, buffers))
        connection.connection_lost(None)
        assert guard.admits("192.0.2.1")

    asyncio.run(go())
