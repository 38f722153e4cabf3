"""Simulates a bookie that handles single adds wrongly: it drops one, or acknowledges one twice.

Changes whole V2 frames, as one write carries them. Other frames and V3 stay as they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from quire_bookie.wire import v2
from quire_bookie.wire.status import V2_CODES, Status

_V3_FIRST_BYTE = b"\x0a"
_LENGTH_BYTES = 4
_KEY_OFFSET = v2.ADD_ENTRY_OFFSET
_KEY_BYTES = 16
"""Size of the ledger and entry ids at the beginning of an add's entry."""


@dataclass(slots=True)
class MissedAdd:
    """Drops the next add that reaches a bookie, and its repetitions; passes on all other adds."""

    refuses: bool
    """Whether the bookie responds with ETOOMANYREQUESTS each time; otherwise it does not respond."""
    key: bytes = field(default=b"", init=False)
    """Ledger and entry of the dropped add; empty until it arrives."""

    def pass_on(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes of a write that reach the bookie, and its refusals."""
        taken, refusals = [], []
        for frame, opcode in _frames(data):
            if opcode != v2.ADD:
                taken.append(frame)
                continue
            key = frame[_KEY_OFFSET : _KEY_OFFSET + _KEY_BYTES]
            self.key = self.key or key
            if key != self.key:
                taken.append(frame)
            elif self.refuses:
                header = v2.answer_header(v2.VERSION, v2.ADD)
                code = V2_CODES[Status.TOO_MANY_REQUESTS]
                fixed = v2.RESPONSE.pack(v2.ADD_RESPONSE_LENGTH, header, code, 0, 0)
                refusals.append(fixed[:-_KEY_BYTES] + key)
        return b"".join(taken), b"".join(refusals)


def answered_twice(data: bytes) -> bytes:
    """Return a bookie's write with each response to an add repeated."""
    return b"".join(frame * 2 if opcode == v2.ADD else frame for frame, opcode in _frames(data))


def _frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield each frame of a write and its opcode; -1 for a frame that is not V2."""
    at = 0
    while at < len(data):
        end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
        frame = data[at:end]
        at = end
        if frame[_LENGTH_BYTES : _LENGTH_BYTES + 1] == _V3_FIRST_BYTE:
            yield frame, -1
        else:
            yield frame, v2.parse_header(int.from_bytes(frame[_LENGTH_BYTES : _LENGTH_BYTES + 4], "big"))[1]
