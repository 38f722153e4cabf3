"""Damaged frames: recorded ones of the stock client, with bytes changed as by networks, bugs and attackers."""

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "bookkeeper-wire"
_EXTREMES = (-(2**63), -(2**31), -2, -1, 0, 1, 20, 0x7F, 0xFF, 2**31 - 1, 2**31, 2**32, 2**63 - 1)
_LENGTH_KEPT = 0.15
"""Share of frames whose length field is not adjusted to the changed bytes, or is random."""


@cache
def recorded(direction: str) -> tuple[bytes, ...]:
    """Return all distinct recorded frames of a direction (`>`: requests, `<`: responses)."""
    found: dict[bytes, None] = {}
    for capture in sorted(GOLDEN.glob("*.txt")):
        for line in capture.read_text().splitlines():
            if line.startswith(direction):
                found[bytes.fromhex(line[1:].strip())] = None
    assert len(found) > 100, "the captures are missing"
    return tuple(found)


V3_FIRST_BYTE = b"\x0a"


@cache
def of_generation(direction: str, generation: int) -> tuple[bytes, ...]:
    """Return the recorded frames of one protocol generation, 2 or 3: mixing them ends a connection early."""
    return tuple(frame for frame in recorded(direction) if (frame[4:5] == V3_FIRST_BYTE) is (generation == 3))


def conversation(rng: random.Random, direction: str, frames_max: int, generation: int) -> list[bytes]:
    """Draw the frames of one connection: most of them undamaged, so that the connection lives long enough."""
    corpus = of_generation(direction, generation) if rng.random() < 0.9 else recorded(direction)
    harm = rng.choice((0.02, 0.1, 0.5))
    return [
        damaged(rng, corpus) if rng.random() < harm else rng.choice(corpus) for _ in range(rng.randrange(1, frames_max))
    ]


def damaged(rng: random.Random, frames: Sequence[bytes]) -> bytes:
    """Return one damaged frame, perhaps truncated."""
    frame = rng.choice(frames)
    body = bytearray(frame[4:])
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        _change(rng, body, frames)
    length = len(body)
    if rng.random() < _LENGTH_KEPT:
        length = rng.choice((len(frame) - 4, rng.choice(_EXTREMES), length + rng.randint(-8, 8)))
    return (length & 0xFFFFFFFF).to_bytes(4, "big") + bytes(body)


def _change(rng: random.Random, body: bytearray, frames: Sequence[bytes]) -> None:
    kind = rng.randrange(8)
    at = rng.randrange(len(body) + 1)
    if kind == 0 and body:
        body[at % len(body)] ^= 1 << rng.randrange(8)
    elif kind == 1 and body:
        body[at % len(body)] = rng.choice((0, 1, 2, 0x0A, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 2:
        size = rng.choice((4, 8))
        body[at : at + size] = (rng.choice(_EXTREMES) % 2 ** (8 * size)).to_bytes(size, "big")
    elif kind == 3:
        del body[at:]
    elif kind == 4:
        del body[at : at + rng.randrange(1, 32)]
    elif kind == 5:
        body[at:at] = rng.randbytes(rng.randrange(1, 64))
    elif kind == 6:
        other = rng.choice(frames)
        body[at:] = other[4 + at % len(other) :]
    else:
        body[:] = rng.randbytes(rng.randrange(0, 200))


def chunks(rng: random.Random, data: bytes) -> list[bytes]:
    """Split bytes at random, as a network may deliver them."""
    found = []
    while data:
        size = rng.choice((1, 3, 7, 64, 1024, len(data)))
        found.append(data[:size])
        data = data[size:]
    return found
