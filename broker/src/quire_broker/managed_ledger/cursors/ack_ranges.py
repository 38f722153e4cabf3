"""Individually acknowledged entries of a cursor, as a bitmap for each ledger. Pure.

A bitmap is a row of chunks of 4,096 entries, each one integer: an acknowledgment changes one chunk, and a hole takes
about a byte of memory, so a million holes cost as little as a few. A chunk keeps the bytes in which it was last stored
until it changes: to store the whole set again costs what changed.

Does not know which entries exist: the caller clips a range to its ledger before it adds it. Never joins ranges of
different ledgers: only the ledger list shows whether two ledgers adjoin.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

_SHIFT: Final = 12
CHUNK_ENTRIES: Final = 1 << _SHIFT
_IN_CHUNK: Final = CHUNK_ENTRIES - 1
_FULL: Final = (1 << CHUNK_ENTRIES) - 1
_CHUNK_BYTES: Final = CHUNK_ENTRIES // 8


class AckRange(NamedTuple):
    """Entries `first` to `last`, both included, of one ledger."""

    ledger_id: int
    first: int
    last: int


class AckRanges:
    """A mutable set of entries. `entries` is their number."""

    __slots__ = ("_ledgers", "entries")

    def __init__(self) -> None:
        self._ledgers: dict[int, _Bitmap] = {}
        self.entries = 0

    def __len__(self) -> int:
        """Return the number of ranges."""
        return sum(bitmap.ranges() for bitmap in self._ledgers.values())

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AckRanges) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # the set is mutable

    def __iter__(self) -> Iterator[AckRange]:
        """Iterate over all ranges, in order."""
        for ledger_id in sorted(self._ledgers):
            for first, last in self._ledgers[ledger_id].runs():
                yield AckRange(ledger_id, first, last)

    def copy(self) -> "AckRanges":
        """Return an independent set of the same entries."""
        copied = AckRanges()
        copied._ledgers = {ledger_id: bitmap.copy() for ledger_id, bitmap in self._ledgers.items()}
        copied.entries = self.entries
        return copied

    def ledgers(self) -> list[int]:
        """Return the ledgers that have a range, in order."""
        return sorted(self._ledgers)

    def ranges_of(self, ledger_id: int) -> list[tuple[int, int]]:
        """Return the first and last entry of each range of one ledger, in order."""
        found = self._ledgers.get(ledger_id)
        return [] if found is None else list(found.runs())

    def last_of(self, ledger_id: int) -> int:
        """Return the highest entry of a ledger that is in a range; -1 if it has none."""
        found = self._ledgers.get(ledger_id)
        return -1 if found is None else found.last()

    # ---- changes
    def _bitmap(self, ledger_id: int, chunk: int) -> "_Bitmap":
        """Return the entries of a ledger; if it has none, an empty set that begins with this chunk."""
        bitmap = self._ledgers.get(ledger_id)
        if bitmap is None:
            bitmap = self._ledgers[ledger_id] = _Bitmap(chunk)
        return bitmap

    def add(self, ledger_id: int, first: int, last: int) -> int:
        """Add entries `first` to `last`, both included. Return how many of them were not in the set before."""
        assert 0 <= first <= last, "a range holds at least one entry"
        added = self._bitmap(ledger_id, first >> _SHIFT).add(first, last)
        assert 0 <= added <= last - first + 1
        self.entries += added
        return added

    def add_all(self, ledger_id: int, entries: Iterable[int]) -> int:
        """Add entries, in any order. Return how many were not in the set."""
        chunks: dict[int, int] = {}
        for entry in entries:
            number = entry >> _SHIFT
            chunks[number] = chunks.get(number, 0) | 1 << (entry & _IN_CHUNK)
        if not chunks:
            return 0
        bitmap = self._bitmap(ledger_id, min(chunks))
        added = sum(bitmap.merge(number, bits) for number, bits in chunks.items())
        self.entries += added
        return added

    def add_bits(self, ledger_id: int, bits: bytes) -> None:
        """Add the entries whose bits are set: bit i of byte b is entry 8 * b + i."""
        for at in range(0, len(bits), _CHUNK_BYTES):
            self.add_chunk(ledger_id, at // _CHUNK_BYTES, int.from_bytes(bits[at : at + _CHUNK_BYTES], "little"))

    def add_chunk(self, ledger_id: int, number: int, bits: int) -> None:
        """Add entries of one chunk: bit i is entry i of the chunk."""
        if bits:
            self.entries += self._bitmap(ledger_id, number).merge(number, bits)

    def remove(self, ledger_id: int, entry_id: int) -> bool:
        """Remove one entry. Return whether it was in the set."""
        bitmap = self._ledgers.get(ledger_id)
        if bitmap is None or not bitmap.remove(entry_id):
            return False
        self.entries -= 1
        if not bitmap.chunks:
            del self._ledgers[ledger_id]
        return True

    def chunks_to_add(self, ledger_id: int, first: int, last: int) -> int:
        """Return by how many chunks the set would grow if the range were added: what memory it would take."""
        bitmap = self._ledgers.get(ledger_id)
        return (last >> _SHIFT) - (first >> _SHIFT) + 1 if bitmap is None else bitmap.chunks_to_add(first, last)

    def drop_through(self, ledger_id: int, entry_id: int) -> None:
        """Remove all entries up to and including this one, and all entries of earlier ledgers."""
        for earlier in [known for known in self._ledgers if known < ledger_id]:
            self.entries -= self._ledgers.pop(earlier).count()
        bitmap = self._ledgers.get(ledger_id)
        if bitmap is not None and entry_id >= 0:
            self.entries -= bitmap.drop_below(entry_id + 1)
            if not bitmap.chunks:
                del self._ledgers[ledger_id]
        assert self.entries >= len(self._ledgers), "each ledger that is listed has entries"

    def keep_below(self, ledger_id: int, count: int) -> None:
        """Remove the entries of one ledger from `count` on."""
        bitmap = self._ledgers.get(ledger_id)
        if bitmap is not None:
            self.entries -= bitmap.keep_below(count)
            if not bitmap.chunks:
                del self._ledgers[ledger_id]

    def clear(self) -> None:
        """Remove all entries."""
        self._ledgers.clear()
        self.entries = 0

    # ---- lookups
    def __contains__(self, position: tuple[int, int]) -> bool:
        bitmap = self._ledgers.get(position[0])
        return bitmap is not None and bitmap.holds(position[1])

    def end_of(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the last entry of the range that contains the entry, or None if no range does."""
        bitmap = self._ledgers.get(ledger_id)
        return None if bitmap is None or not bitmap.holds(entry_id) else bitmap.end_of(entry_id)

    def next_start(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the first entry of the first range of the ledger that begins above `entry_id`, or None."""
        bitmap = self._ledgers.get(ledger_id)
        return None if bitmap is None else bitmap.next_start(entry_id)

    def span(self, ledger_id: int, first: int, others_max: int, bridged_max: int) -> int:
        """Return the last entry of a read that begins at `first`, an entry outside of the set.

        The read has at most `others_max` entries outside of the set, and ends before a range longer than `bridged_max`.
        """
        at, left = first, others_max
        while (start := self.next_start(ledger_id, at)) is not None and start - at < left:
            end = self.end_of(ledger_id, start)
            assert end is not None
            if end - start >= bridged_max:
                return start - 1
            left -= start - at
            at = end + 1
        return at + left - 1

    def bits(self, ledger_id: int, chunk: int) -> int:
        """Return the entries of one chunk of a ledger that has a range: bit i is entry i of the chunk."""
        return self._ledgers[ledger_id].bits(chunk)

    def chunks(self, ledger_id: int) -> Iterator[tuple[int, int]]:
        """Yield the chunks of a ledger that have entries, with their numbers: see `add_chunk`."""
        return self._ledgers[ledger_id].with_entries()

    def entry_after(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the first entry of the ledger above `entry_id` that is in the set, or None."""
        following = entry_id + 1
        if (ledger_id, following) in self:
            return following
        return self.next_start(ledger_id, following)

    # ---- storing
    def chunk_bytes(self, ledger_id: int, encode: Callable[[bytes], bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the number of ranges that begin in each chunk of a ledger, and the chunk in stored form.

        Begins with the chunk of entry 0. `encode` gets the bits as in `add_bits`, and is only called for chunks that
        have changed since; the last chunk ends with its last word of eight bytes that has a bit.
        """
        return self._ledgers[ledger_id].stored(encode)


class _Bitmap:
    """The entries of one ledger. The first chunk and the last have entries, unless there are none."""

    __slots__ = ("_base", "_stored", "chunks")

    def __init__(self, base: int) -> None:
        self._base = base
        self.chunks: list[int] = []
        self._stored: list[bytes | None] = []

    def copy(self) -> "_Bitmap":
        copied = _Bitmap(self._base)
        copied.chunks, copied._stored = list(self.chunks), list(self._stored)
        return copied

    def count(self) -> int:
        return sum(map(int.bit_count, self.chunks))

    def last(self) -> int:
        return ((self._base + len(self.chunks)) << _SHIFT) - CHUNK_ENTRIES + self.chunks[-1].bit_length() - 1

    def ranges(self) -> int:
        found, carry = 0, 0
        for chunk in self.chunks:
            found += (chunk & ~(chunk << 1 | carry)).bit_count()
            carry = chunk >> _IN_CHUNK
        return found

    # ---- changes
    def add(self, first: int, last: int) -> int:
        low, high = first >> _SHIFT, last >> _SHIFT
        if low == high:
            return self.merge(low, ((1 << last - first + 1) - 1) << (first & _IN_CHUNK))
        added = self.merge(low, _FULL >> (first & _IN_CHUNK) << (first & _IN_CHUNK))
        for number in range(low + 1, high):
            added += self.merge(number, _FULL)
        return added + self.merge(high, _FULL >> _IN_CHUNK - (last & _IN_CHUNK))

    def merge(self, number: int, bits: int) -> int:
        """Add the bits to a chunk. Return how many were not set."""
        self._make_room(number)
        at = number - self._base
        before = self.chunks[at]
        after = before | bits
        if after == before:
            return 0
        # Full chunks are one object, so that a long range takes 8 bytes for each.
        self.chunks[at] = _FULL if after == _FULL else after
        self._stored[at] = None
        return after.bit_count() - before.bit_count()

    def _make_room(self, number: int) -> None:
        lower = self._base - number
        if lower > 0:
            self.chunks[:0] = [0] * lower
            self._stored[:0] = [None] * lower
            self._base = number
        higher = number - self._base - len(self.chunks) + 1
        if higher > 0:
            self.chunks += [0] * higher
            self._stored += [None] * higher

    def chunks_to_add(self, first: int, last: int) -> int:
        low, high = min(first >> _SHIFT, self._base), max(last >> _SHIFT, self._base + len(self.chunks) - 1)
        return high - low + 1 - len(self.chunks)

    def drop_below(self, entry: int) -> int:
        """Remove the entries below `entry`. Return their number."""
        whole = min(max(0, (entry >> _SHIFT) - self._base), len(self.chunks))
        dropped = sum(map(int.bit_count, self.chunks[:whole]))
        del self.chunks[:whole]
        del self._stored[:whole]
        self._base += whole
        if self.chunks and entry >> _SHIFT == self._base:
            before = self.chunks[0]
            bit = entry & _IN_CHUNK
            self.chunks[0] = before >> bit << bit
            self._stored[0] = None
            dropped += before.bit_count() - self.chunks[0].bit_count()
        self._drop_empty_ends()
        return dropped

    def remove(self, entry: int) -> bool:
        at, bit = (entry >> _SHIFT) - self._base, 1 << (entry & _IN_CHUNK)
        if not 0 <= at < len(self.chunks) or not self.chunks[at] & bit:
            return False
        self.chunks[at] ^= bit
        self._stored[at] = None
        if not self.chunks[at] and (at == 0 or at + 1 == len(self.chunks)):
            self._drop_empty_ends()
        return True

    def _drop_empty_ends(self) -> None:
        while self.chunks and not self.chunks[-1]:
            self.chunks.pop()
            self._stored.pop()
        empty = next((at for at, chunk in enumerate(self.chunks) if chunk), len(self.chunks))
        del self.chunks[:empty]
        del self._stored[:empty]
        self._base += empty

    def keep_below(self, count: int) -> int:
        """Remove the entries from `count` on. Return their number."""
        kept = min(max(0, (count + _IN_CHUNK >> _SHIFT) - self._base), len(self.chunks))
        dropped = sum(map(int.bit_count, self.chunks[kept:]))
        del self.chunks[kept:]
        del self._stored[kept:]
        if self.chunks and count >> _SHIFT == self._base + kept - 1:
            before = self.chunks[-1]
            self.chunks[-1] = before & (1 << (count & _IN_CHUNK)) - 1
            self._stored[-1] = None
            dropped += before.bit_count() - self.chunks[-1].bit_count()
        self._drop_empty_ends()
        return dropped

    # ---- lookups
    def with_entries(self) -> Iterator[tuple[int, int]]:
        return ((number, chunk) for number, chunk in enumerate(self.chunks, self._base) if chunk)

    def bits(self, chunk: int) -> int:
        at = chunk - self._base
        return self.chunks[at] if 0 <= at < len(self.chunks) else 0

    def holds(self, entry: int) -> bool:
        return bool(self.bits(entry >> _SHIFT) >> (entry & _IN_CHUNK) & 1)

    def end_of(self, entry: int) -> int:
        """Return the last entry of the run that `entry` is in."""
        at = (entry >> _SHIFT) - self._base
        bit = entry & _IN_CHUNK
        ones = _trailing_ones(self.chunks[at] >> bit)
        end = entry + ones - 1
        while bit + ones == CHUNK_ENTRIES and (at := at + 1) < len(self.chunks):
            bit, ones = 0, _trailing_ones(self.chunks[at])
            end += ones
        return end

    def next_start(self, entry: int) -> int | None:
        """Return the first entry above `entry` that is in the set and follows one that is not."""
        wanted = max(entry + 1, self._base << _SHIFT)
        at = (wanted >> _SHIFT) - self._base
        skipped = wanted & _IN_CHUNK
        carry = self.chunks[at - 1] >> _IN_CHUNK if 0 < at <= len(self.chunks) else 0
        for number in range(at, len(self.chunks)):
            chunk = self.chunks[number]
            if chunk:
                starts = (chunk & ~(chunk << 1 | carry)) >> skipped
                if starts:
                    return (self._base + number << _SHIFT) + skipped + (starts & -starts).bit_length() - 1
            carry, skipped = chunk >> _IN_CHUNK, 0
        return None

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last entry of each run, in order."""
        begun = -1
        for number, chunk in enumerate(self.chunks, self._base):
            base, at = number << _SHIFT, 0
            while chunk:
                zeros = (chunk & -chunk).bit_length() - 1
                if begun >= 0 and at + zeros:
                    yield begun, base + at - 1
                    begun = -1
                at += zeros
                chunk >>= zeros
                if begun < 0:
                    begun = base + at
                ones = _trailing_ones(chunk)
                at += ones
                chunk >>= ones
                if at < CHUNK_ENTRIES:
                    yield begun, base + at - 1
                    begun = -1
            if begun >= 0 and at == 0:  # the chunk is empty
                yield begun, base - 1
                begun = -1
        if begun >= 0:
            yield begun, (self._base + len(self.chunks) << _SHIFT) - 1

    # ---- storing
    def stored(self, encode: Callable[[bytes], bytes]) -> Iterator[tuple[int, bytes]]:
        if self._base:
            empty = encode(bytes(_CHUNK_BYTES))
            for _ in range(self._base):
                yield 0, empty
        carry = 0
        for at, chunk in enumerate(self.chunks):
            found = self._stored[at]
            is_last = at + 1 == len(self.chunks)
            if found is None or is_last:
                words = (chunk.bit_length() + 63) // 64 if is_last else CHUNK_ENTRIES // 64
                found = encode(chunk.to_bytes(8 * words, "little"))
                self._stored[at] = None if is_last else found
            yield (chunk & ~(chunk << 1 | carry)).bit_count(), found
            carry = chunk >> _IN_CHUNK


def _trailing_ones(bits: int) -> int:
    return (~bits & bits + 1).bit_length() - 1
