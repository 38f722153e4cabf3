"""Owner of each slot of a Key_Shared subscription's hash space. Pure: three forms of one interface.

    form          slots      slot of a key           owner
    HashRing      1..65535   hash mod 65535 + 1      100 points per consumer at the slot of `name NUL index NUL i`;
                                                     the owner is the first point at or after the slot, wrapping around
    SplitRanges   0..65535   hash mod 65536, 0 -> 1  the first owns all; a new consumer takes the lower half of the
    biggest
                                                     range; when a consumer leaves, its range joins the one above it
    StickyRanges  0..65535   hash mod 65536          as the clients request; other slots have no owner

`hash` is the 31-bit Murmur3 of the key. Source: spec pulsar-wire, section 8.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from quire_broker.errors import ConsumerAssignError
from quire_broker.wire.kinds import KeySharedMode
from quire_broker.wire.murmur import key_hash

C = TypeVar("C")
SLOTS = 65536
RING_SLOTS = SLOTS - 1
RING_POINTS = 100


class Slots(Protocol[C]):
    """Assigns slots to consumers."""

    def slot_of(self, key: bytes) -> int:
        """Return the slot of a key."""
        ...

    def owner(self, slot: int) -> C | None:
        """Return the owner of a slot, or None."""
        ...

    def add(self, consumer: C, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Add a consumer."""
        ...

    def remove(self, consumer: C) -> None:
        """Remove a consumer."""
        ...


def ring_slot(hash31: int) -> int:
    """Return the slot on the ring; 0 is reserved."""
    return hash31 % RING_SLOTS + 1


def plain_slot(hash31: int) -> int:
    """Return the slot in the forms with ranges."""
    return hash31 % SLOTS


class HashRing(Generic[C]):
    """Consistent hashing. `name_index` numbers consumers that have the same name."""

    def __init__(self) -> None:
        self._points: list[int] = []
        self._owners: dict[int, list[C]] = {}
        self._placed: dict[C, tuple[str, int, list[int]]] = {}

    def slot_of(self, key: bytes) -> int:
        """Return the slot on the ring."""
        return ring_slot(key_hash(key))

    def owner(self, slot: int) -> C | None:
        """Return the consumer at the next point. If several share a point, the earliest one owns it."""
        if not self._points:
            return None
        index = bisect_left(self._points, slot)
        return self._owners[self._points[index % len(self._points)]][0]

    def add(self, consumer: C, name: str, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """Add the points of a consumer; `ranges` are not used."""
        taken = {index for other, index, _ in self._placed.values() if other == name}
        name_index = next(index for index in range(len(taken) + 1) if index not in taken)
        points = sorted({ring_slot(key_hash(f"{name}\0{name_index}\0{i}".encode())) for i in range(RING_POINTS)})
        self._placed[consumer] = (name, name_index, points)
        for point in points:
            owners = self._owners.setdefault(point, [])
            if not owners:
                insort(self._points, point)
            owners.append(consumer)

    def remove(self, consumer: C) -> None:
        """Remove the points of a consumer."""
        _, _, points = self._placed.pop(consumer)
        for point in points:
            owners = self._owners[point]
            owners.remove(consumer)
            if not owners:
                del self._owners[point]
                del self._points[bisect_left(self._points, point)]


class SplitRanges(Generic[C]):
    """Halving. Ranges are kept by their upper end, both ends included."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._owners: list[C] = []

    def slot_of(self, key: bytes) -> int:
        """Return the plain slot; 0 becomes 1."""
        return plain_slot(key_hash(key)) or 1

    def owner(self, slot: int) -> C | None:
        """Return the consumer whose range contains the slot."""
        return self._owners[bisect_left(self._ends, slot)] if self._ends else None

    def add(self, consumer: C, name: str, ranges: Sequence[tuple[int, int]] = ()) -> None:
        """Give the first consumer everything; halve the biggest range (the lowest of equals) for later ones."""
        if not self._ends:
            self._ends.append(SLOTS - 1)
            self._owners.append(consumer)
            return
        starts = [0, *(end + 1 for end in self._ends[:-1])]
        sizes = [end - start + 1 for start, end in zip(starts, self._ends, strict=True)]
        biggest = sizes.index(max(sizes))
        if sizes[biggest] < 2:
            raise ConsumerAssignError("No more range can assigned to new consumer, assigned consumers")
        self._ends.insert(biggest, starts[biggest] + sizes[biggest] // 2 - 1)
        self._owners.insert(biggest, consumer)
        assert len(self._ends) == len(self._owners) and self._ends[-1] == SLOTS - 1, "every slot has one owner"

    def remove(self, consumer: C) -> None:
        """Merge the consumer's range into the next higher one; the highest range is merged into the one below."""
        index = self._owners.index(consumer)
        del self._owners[index]
        if index == len(self._ends) - 1 and index > 0:
            self._ends[index - 1] = self._ends[index]
        del self._ends[index]
        assert not self._ends or self._ends[-1] == SLOTS - 1, "every slot has one owner"


class StickyRanges(Generic[C]):
    """Ranges that clients request. The caller of `add` first checks `conflict`."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, C]] = []
        self._ends: list[int] = []

    def slot_of(self, key: bytes) -> int:
        """Return the plain slot."""
        return plain_slot(key_hash(key))

    def owner(self, slot: int) -> C | None:
        """Return the consumer whose range contains the slot; None in a gap."""
        index = bisect_left(self._ends, slot)
        if index < len(self._ranges) and self._ranges[index][0] <= slot:
            return self._ranges[index][2]
        return None

    def conflict(self, ranges: Sequence[tuple[int, int]]) -> C | None:
        """Return a consumer that owns a part of `ranges`, or None. ConsumerAssignError for impossible ranges."""
        checked: list[tuple[int, int]] = []
        if not ranges:
            raise ConsumerAssignError("Ranges for KeyShared policy must not be empty.")
        for start, end in sorted(ranges):
            if not 0 <= start <= end < SLOTS:
                raise ConsumerAssignError(f"Ranges must be within 0..{SLOTS - 1}; got {start}..{end}")
            if checked and checked[-1][1] >= start:
                raise ConsumerAssignError(f"Ranges overlap each other: {checked[-1]} and {(start, end)}")
            checked.append((start, end))
        for start, end in checked:
            index = bisect_left(self._ends, start)
            if index < len(self._ranges) and self._ranges[index][0] <= end:
                return self._ranges[index][2]
        return None

    def add(self, consumer: C, name: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Assign ranges that have no owner."""
        assert self.conflict(ranges) is None
        self._set([*self._ranges, *((start, end, consumer) for start, end in ranges)])

    def remove(self, consumer: C) -> None:
        """Release the consumer's ranges."""
        self._set([held for held in self._ranges if held[2] is not consumer])

    def _set(self, ranges: list[tuple[int, int, C]]) -> None:
        self._ranges = sorted(ranges, key=lambda held: held[0])
        self._ends = [end for _, end, _ in self._ranges]
        assert all(end < held[0] for end, held in zip(self._ends, self._ranges[1:], strict=False))


def slots_of(mode: KeySharedMode, *, consistent_hashing: bool) -> tuple[Slots[C], StickyRanges[C] | None]:
    """Return the slots of a mode, and the same as StickyRanges if the clients request them."""
    if mode is KeySharedMode.STICKY:
        sticky = StickyRanges[C]()
        return sticky, sticky
    return (HashRing[C]() if consistent_hashing else SplitRanges[C]()), None
