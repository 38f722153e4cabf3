"""Frames of the bookie protocol in a stream of buffers: int32 length, then that many bytes. Never looks inside one.

A buffer is walked in place by the codec; only the one frame that straddles two buffers is put together here.
"""

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer

LENGTH_BYTES = 4
V2_HEADER_BYTES = 4
_SMALL_PART_BYTES = 4096
"""Below it parts are gathered in one object: a client may send a frame byte by byte."""


def check_length(length: int, frame_bytes_max: int) -> None:
    """Raise PeerProtocolError for a length that no frame may have."""
    if length <= 0 or length > frame_bytes_max:
        raise PeerProtocolError(f"frame of {length} bytes; allowed are 1 to {frame_bytes_max}")


def check_header_fits(data: bytes, position: int) -> None:
    """At the end of a buffer, fewer than 8 bytes of it left: a V2 frame has at least the 4 bytes of its header."""
    if len(data) - position >= LENGTH_BYTES:
        length = int.from_bytes(data[position : position + LENGTH_BYTES], "big", signed=True)
        if length < V2_HEADER_BYTES:
            raise PeerProtocolError(f"V2 frame of {length} bytes has no header")


class Straddler:
    """The beginning of a frame whose rest has not arrived."""

    __slots__ = ("_frame_bytes_max", "_have", "_need", "_parts")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._parts: list[Buffer] = []
        self._have = 0
        self._need = LENGTH_BYTES

    def allow_frames(self, frame_bytes_max: int) -> None:
        """Take frames of another size from now on."""
        self._frame_bytes_max = frame_bytes_max

    @property
    def pending(self) -> bool:
        """Whether some bytes of a frame are waiting for the rest."""
        return self._have > 0

    @property
    def held_bytes(self) -> int:
        """What has arrived of the frame."""
        return self._have

    @property
    def announced_bytes(self) -> int:
        """What it will have, with its length; those of the length alone while it is not known."""
        return self._need

    def forget(self) -> None:
        """Drop the bytes that have arrived."""
        self._parts.clear()
        self._have, self._need = 0, LENGTH_BYTES

    def take(self, data: bytes, position: int) -> tuple[int, bytes | None]:
        """Add bytes from `position` on; gives the position behind them and the frame (with length) when complete."""
        while True:
            wanted = min(self._need - self._have, len(data) - position)
            if wanted:
                self._keep(memoryview(data)[position : position + wanted], len(data))
                self._have += wanted
                position += wanted
            if self._have < self._need:
                return position, None
            if self._need > LENGTH_BYTES:
                frame = b"".join(self._parts)
                self.forget()
                return position, frame
            length = int.from_bytes(b"".join(self._parts), "big", signed=True)
            check_length(length, self._frame_bytes_max)
            self._need = LENGTH_BYTES + length

    def _keep(self, part: memoryview, buffer_bytes: int) -> None:
        """Hold a part without what it cost more than its bytes, for as long as the client takes to send the rest."""
        parts = self._parts
        if len(part) < _SMALL_PART_BYTES:
            if parts and isinstance(parts[-1], bytearray):
                parts[-1] += part
            else:
                parts.append(bytearray(part))
        else:
            # A view would keep the whole buffer.
            parts.append(part if len(part) * 2 >= buffer_bytes else bytes(part))
