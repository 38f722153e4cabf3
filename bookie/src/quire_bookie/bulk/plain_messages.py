"""The steps from stored entries to columns: what they mean, and the fallback. See `plain`.

Columns are buffers as Arrow lays them out: bitmaps of what is not null (None: nothing is), offsets of 32 bits, values
behind one another, in the machine's order.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

from quire_bookie.bulk.plain_adds import split_batch
from quire_bookie.model import Buffer

Column: TypeAlias = tuple[bytes | None, ...]
Inflate: TypeAlias = Callable[[bytes, int, int], bytes | None]
"""Compressed bytes, the codec's number, the size said; None: they cannot be inflated."""


def join_payloads(entries: Sequence[Buffer], skip: int) -> tuple[Buffer, bytes]:
    """Offsets and bytes of what is behind the first `skip` bytes of each entry.

    IndexError where one is shorter.
    """
    views = [memoryview(entry)[skip:] for entry in entries] if skip else entries
    if skip and any(len(entry) < skip for entry in entries):
        raise IndexError("an entry that is shorter than its head")
    return array("i", accumulate(map(len, views), initial=0)).tobytes(), b"".join(views)


def join_batch(body: Buffer, skip: int) -> tuple[Buffer, bytes]:
    """The same of the body of a batch's answer. ValueError as `split_batch`."""
    return join_payloads(split_batch(body), skip)


def message_columns(
    data: Buffer, offsets: Buffer, first: int, bytes_max: int, wants_payload: bool, inflate: Inflate
) -> tuple[int, int, int, dict[str, Column], list[int]]:
    """The messages of Pulsar's entries from number `first` on, up to an entry that has to be looked at one by one.

    `data` and `offsets`: the entries, as a column. It ends as well with the entry whose messages come to `bytes_max`.
    Taken are entries with a right checksum, with or without broker metadata in front, whose metadata are complete and
    have nothing but producer, sequence id, times, key, ordering key, properties, schema version, compression, batch
    size, null value, and what makes no column; in batches every message must be whole, and the rows at most 64 MiB. Left are chunks, markers, what
    is encrypted, damaged, not UTF-8, or later than the year 9999.

    Gives the number of the entry behind the last, of rows, of their bytes (about), the columns `source` (number of
    the entry, int64), `batch_index`, `publish_time` and `event_time` (ms), `sequence_id`, `size`, `producer`, `key`,
    `ordering_key`, `schema_version`, `properties` (offsets; offsets and bytes of keys; the same of values), `payload`
    where it is wanted, without those in which all is null (or no property); and the rows whose key is said to be
    base64.

    Plain Python takes none: going entry by entry, as for what is left, is all that it could do here as well.
    """
    return first, 0, 0, {}, []
