"""Encodes and decodes the list of a ledger's entries at a bookie, as in GET_LIST_OF_ENTRIES. Pure.

```
header, 64 bytes   int32 version = 0   int32 number of groups   zeros
group, 24 bytes    int64 first start   int64 last start   int32 size   int32 period           (big-endian)
```
A group consists of runs of `size` consecutive ids that start every `period` ids from the first start to the last; with
period 0 it is a single run. Groups ascend by first start. The encoder writes one group for each run, as BookKeeper's
does, and merges runs only if the list would otherwise be too long. The decoder accepts both forms.
Source of the format: BookKeeper's protocol, AvailabilityOfEntriesOfLedger.
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer, EntryId

_VERSION = 0
_HEAD = Struct(">ii")
_HEADER_BYTES = 64
_GROUP = Struct(">qqii")
_INT32_MAX = (1 << 31) - 1

EntryRange: TypeAlias = tuple[EntryId, EntryId]
"""First and last id of a run, both inclusive."""


@dataclass(frozen=True, slots=True)
class EntryGroup:
    """Runs of `size` ids that start every `period` ids, from `first_start` to `last_start`; period 0: one run."""

    first_start: EntryId
    last_start: EntryId
    size: int
    period: int

    def __contains__(self, entry: EntryId) -> bool:
        distance = entry - self.first_start
        if distance < 0 or entry >= self.last_start + self.size:
            return False
        return (distance % self.period if self.period else distance) < self.size

    @property
    def entries(self) -> int:
        """The number of ids."""
        return self.size * (1 + ((self.last_start - self.first_start) // self.period if self.period else 0))

    def ranges(self) -> Iterator[EntryRange]:
        """Yield its runs, ascending. A few bytes can describe any number of runs."""
        for start in range(self.first_start, self.last_start + 1, self.period or 1):
            yield EntryId(start), EntryId(start + self.size - 1)


@dataclass(frozen=True, slots=True)
class Availability:
    """The ids that a bookie reports to hold."""

    groups: tuple[EntryGroup, ...]

    def __contains__(self, entry: EntryId) -> bool:
        return any(entry in group for group in self.groups)

    @property
    def entries(self) -> int:
        """The number of ids."""
        return sum(group.entries for group in self.groups)

    def ranges(self) -> Iterator[EntryRange]:
        """Yield the runs, ascending."""
        for group in self.groups:
            yield from group.ranges()


def encode(ranges: Sequence[EntryRange], bytes_max: int) -> bytes | None:
    """Encode ascending ranges that do not overlap. Return None if the list does not fit `bytes_max` bytes.

    Uses one group for each run, as the stock bookie does; if that is too long, runs of equal size and distance share
    a group.
    """
    runs = list(_maximal(ranges))
    if _HEADER_BYTES + _GROUP.size * len(runs) <= bytes_max:
        return _encode([EntryGroup(first, first, size, 0) for first, size in runs])
    groups = list(_merged(runs))
    return _encode(groups) if _HEADER_BYTES + _GROUP.size * len(groups) <= bytes_max else None


def _encode(groups: Sequence[EntryGroup]) -> bytes:
    packed = [_HEAD.pack(_VERSION, len(groups)).ljust(_HEADER_BYTES, b"\0")]
    packed += [_GROUP.pack(group.first_start, group.last_start, group.size, group.period) for group in groups]
    return b"".join(packed)


def _maximal(ranges: Iterable[EntryRange]) -> Iterator[tuple[EntryId, int]]:
    """Yield first id and size of each maximal run; a run whose size does not fit an int32 is split."""
    start = stop = None
    for first, last in ranges:
        if stop is not None and first == stop:
            stop = last + 1
            continue
        if start is not None and stop is not None:
            yield from _pieces(start, stop)
        start, stop = int(first), last + 1
    if start is not None and stop is not None:
        yield from _pieces(start, stop)


def _pieces(start: int, stop: int) -> Iterator[tuple[EntryId, int]]:
    for first in range(start, stop, _INT32_MAX):
        yield EntryId(first), min(_INT32_MAX, stop - first)


def _merged(runs: Iterable[tuple[EntryId, int]]) -> Iterator[EntryGroup]:
    """Merge runs of equal size and distance into groups, greedily from the left."""
    group: EntryGroup | None = None
    for first, size in runs:
        if group is not None and size == group.size:
            period = first - group.last_start
            if period <= _INT32_MAX and group.period in (0, period):
                group = EntryGroup(group.first_start, first, size, period)
                continue
        if group is not None:
            yield group
        group = EntryGroup(first, first, size, 0)
    if group is not None:
        yield group


def decode(data: Buffer) -> Availability:
    """Decode the list in the bytes of a peer. PeerProtocolError if they are invalid."""
    if len(data) < _HEADER_BYTES:
        raise PeerProtocolError(f"an entry list of {len(data)} bytes has no header")
    version, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise PeerProtocolError(f"an entry list of version {version}; only version {_VERSION} is supported")
    if count < 0 or len(data) != _HEADER_BYTES + count * _GROUP.size:
        raise PeerProtocolError(f"an entry list of {len(data)} bytes cannot contain {count} groups")
    groups: list[EntryGroup] = []
    end = 0
    for first, last, size, period in _GROUP.iter_unpack(data[_HEADER_BYTES:]):
        fits = last == first if period == 0 else period >= size and last >= first and (last - first) % period == 0
        if first < end or size <= 0 or period < 0 or not fits:
            raise PeerProtocolError(f"an entry list with an invalid group {(first, last, size, period)}")
        groups.append(EntryGroup(EntryId(first), EntryId(last), size, period))
        end = last + size
    return Availability(tuple(groups))
