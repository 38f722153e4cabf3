"""Murmur3 against published vectors and those of the captures."""

import pytest

from quire_broker.wire.murmur import key_hash, murmur3_32


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [(b"", 0, 0), (b"", 1, 0x514E28B7), (b"hello", 0, 0x248BFA47), (b"hello, world", 0, 0x149BBB7F)],
)
def test_published_vectors(data: bytes, seed: int, expected: int) -> None:
    assert murmur3_32(data, seed) == expected


@pytest.mark.parametrize(
    ("key", "expected", "slot"),
    [
        (b"key-1", 414258592, 11858),
        (b"my-key", 1844492593, 10019),
        (b"hello-world", 995342265, 62221),
    ],
)
def test_the_hash_of_a_key(key: bytes, expected: int, slot: int) -> None:
    assert key_hash(key) == expected
    assert key_hash(key) % 65535 + 1 == slot
