"""Frames of the bookie protocol in a stream of buffers: int32 length, then the bytes. Never decodes a frame.

The codec walks a buffer in place; only a frame that straddles buffers is assembled here.
"""

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer

LENGTH_BYTES = 4
V2_HEADER_BYTES = 4
_SMALL_PART_BYTES = 4096
"""Smaller parts are joined into one object, because a client may send a frame byte by byte."""


def check_length(length: int, frame_bytes_max: int) -> None:
    """Raise PeerProtocolError for an invalid frame length."""
    if length <= 0 or length > frame_bytes_max:
        raise PeerProtocolError(f"frame of {length} bytes; the limits are 1 and {frame_bytes_max}")


def check_header_fits(data: bytes, position: int) -> None:
    """Check the last bytes of a buffer, fewer than 8: a V2 frame has at least the 4 bytes of its header."""
    if len(data) - position >= LENGTH_BYTES:
        length = int.from_bytes(data[position : position + LENGTH_BYTES], "big", signed=True)
        if length < V2_HEADER_BYTES:
            raise PeerProtocolError(f"V2 frame of {length} bytes has no header")


class Straddler:
    """Holds the beginning of a frame whose rest has not arrived."""

    __slots__ = ("_frame_bytes_max", "_have", "_need", "_parts")

    def __init__(self, frame_bytes_max: int) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._parts: list[Buffer] = []
        self._have = 0
        self._need = LENGTH_BYTES

    def allow_frames(self, frame_bytes_max: int) -> None:
        """Change the largest size of further frames."""
        self._frame_bytes_max = frame_bytes_max

    @property
    def pending(self) -> bool:
        """Whether the beginning of a frame is held."""
        return self._have > 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the frame that have arrived."""
        return self._have

    @property
    def announced_bytes(self) -> int:
        """Bytes of the complete frame including its length field; of that field alone while the length is unknown."""
        return self._need

    def forget(self) -> None:
        """Drop the bytes held."""
        self._parts.clear()
        self._have, self._need = 0, LENGTH_BYTES

    def take(self, data: bytes, position: int) -> tuple[int, bytes | None]:
        """Add bytes from `position` on. Return the position after them, and the frame with its length if complete."""
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
        """Keep a part without overhead beyond its bytes, because the client may be slow to send the rest."""
        parts = self._parts
        if len(part) < _SMALL_PART_BYTES:
            if parts and isinstance(parts[-1], bytearray):
                parts[-1] += part
            else:
                parts.append(bytearray(part))
        else:
            # A view keeps the whole buffer alive, so small parts of a large buffer are copied.
            parts.append(part if len(part) * 2 >= buffer_bytes else bytes(part))
