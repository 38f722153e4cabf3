"""The ring of a namespace: which bundle a topic belongs to. Pure.

A topic's place is the CRC-32 of its full name. A bundle `0xLOW_0xHIGH` includes LOW and excludes HIGH, but for the
last one. Source: spec pulsar-wire, section 6.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from zlib import crc32

from quire_bookie.errors import MetadataFormatError

RING_END = 0xFFFFFFFF


def place_of(topic: str) -> int:
    """A topic's place on the ring."""
    return crc32(topic.encode())


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
            raise MetadataFormatError(f"these boundaries make no ring: {[hex(value) for value in boundaries]}")
        self._boundaries = tuple(boundaries)
        self._names = tuple(f"0x{low:08x}_0x{high:08x}" for low, high in pairwise(boundaries))

    @classmethod
    def even(cls, count: int) -> "Bundles":
        """`count` bundles of about equal size."""
        if count < 1:
            raise ValueError("a namespace has at least one bundle")
        step = (RING_END + 1) // count
        return cls([*(index * step for index in range(count)), RING_END])

    @classmethod
    def from_json(cls, value: object) -> "Bundles":
        """From `{"boundaries": ["0x...", ...]}`; MetadataFormatError when it is something else."""
        boundaries = value.get("boundaries") if isinstance(value, dict) else None
        if not isinstance(boundaries, list):
            raise MetadataFormatError(f"no bundle boundaries in {value!r}")
        try:
            return cls([int(str(boundary), 16) for boundary in boundaries])
        except ValueError as error:
            raise MetadataFormatError(f"bundle boundaries that are no numbers: {boundaries!r}") from error

    def to_json(self) -> dict[str, object]:
        """As policies and the admin API show it."""
        return {"boundaries": [f"0x{value:08x}" for value in self._boundaries], "numBundles": len(self._names)}

    @property
    def names(self) -> tuple[str, ...]:
        """Range texts, ascending."""
        return self._names

    def bundle_of(self, topic: str) -> str:
        """The range text of the bundle that holds a full topic name."""
        place = place_of(topic)
        return self._names[min(bisect_right(self._boundaries, place) - 1, len(self._names) - 1)]
