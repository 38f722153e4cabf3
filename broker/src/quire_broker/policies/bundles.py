"""Maps the topics of a namespace to its bundles, on a hash ring. Pure.

A topic's hash is the CRC-32 of its full name. A bundle `0xLOW_0xHIGH` includes LOW and excludes HIGH, except the
last one, which includes it. Source: spec pulsar-wire, section 6.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

from quire_bookie.errors import MetadataFormatError

RING_END = 0xFFFFFFFF


def hash_of(topic: str) -> int:
    """Return a topic's hash on the ring."""
    return crc32(topic.encode())


def range_of(name: str) -> tuple[int, int]:
    """Return the boundaries of a bundle by its range text. ValueError."""
    low, _, high = name.partition("_")
    return int(low, 16), int(high, 16)


class Bundles:
    """The bundles of one namespace."""

    __slots__ = ("_boundaries", "_names")

    def __init__(self, boundaries: Sequence[int]) -> None:
        if (
            len(boundaries) < 2
            or boundaries[0] != 0
            or boundaries[-1] != RING_END
            or any(low >= high for low, high in pairwise(boundaries))
        ):
            raise MetadataFormatError(f"boundaries that do not form a ring: {[hex(value) for value in boundaries]}")
        self._boundaries = tuple(boundaries)
        self._names = tuple(f"0x{low:08x}_0x{high:08x}" for low, high in pairwise(boundaries))

    @classmethod
    def even(cls, count: int) -> "Bundles":
        """Return `count` bundles of about equal size."""
        if count < 1:
            raise ValueError("a namespace must have at least one bundle")
        step = (RING_END + 1) // count
        return cls([*(index * step for index in range(count)), RING_END])

    @classmethod
    def from_json(cls, value: object) -> "Bundles":
        """Parse `{"boundaries": ["0x...", ...]}`; MetadataFormatError for anything else."""
        boundaries = value.get("boundaries") if isinstance(value, dict) else None
        if not isinstance(boundaries, list):
            raise MetadataFormatError(f"no bundle boundaries in {value!r}")
        try:
            return cls([int(str(boundary), 16) for boundary in boundaries])
        except ValueError as error:
            raise MetadataFormatError(f"bundle boundaries that are not numbers: {boundaries!r}") from error

    def to_json(self) -> dict[str, object]:
        """Encode the bundles for policies and the admin API."""
        return {"boundaries": [f"0x{value:08x}" for value in self._boundaries], "numBundles": len(self._names)}

    def split(self, name: str, at: int) -> "Bundles":
        """Return the bundles with one divided at a hash. ValueError for another name or hash."""
        low, high = range_of(name)
        if name not in self._names or not low < at < high:
            raise ValueError(f"there is no bundle {name} that contains the hash 0x{at:08x} inside")
        return Bundles(sorted({*self._boundaries, at}))

    @property
    def names(self) -> tuple[str, ...]:
        """The range texts, ascending."""
        return self._names

    def bundle_of(self, topic: str) -> str:
        """Return the range text of the bundle that contains a full topic name."""
        return self.bundle_at(hash_of(topic))

    def bundle_at(self, value: int) -> str:
        """Return the range text of the bundle that contains a hash."""
        return self._names[min(bisect_right(self._boundaries, value) - 1, len(self._names) - 1)]
