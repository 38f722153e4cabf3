"""The steps from stored entries to columns: the specification and the fallback. See `plain`.

Columns are buffers in Arrow's layout, in native byte order: validity bitmaps (None: no value is null), offsets of 32
bits, concatenated values.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

from quire_bookie.bulk.plain_adds import split_batch
from quire_bookie.model import Buffer

Column: TypeAlias = tuple[bytes | None, ...]
Inflate: TypeAlias = Callable[[bytes, int, int], bytes | None]
"""Decompresses bytes, given the number of the codec and the stated size; None if that fails."""


def join_payloads(entries: Sequence[Buffer], skip: int) -> tuple[Buffer, bytes]:
    """Return offsets and concatenated bytes of each entry without its first `skip` bytes.

    IndexError if an entry is shorter.
    """
    views = [memoryview(entry)[skip:] for entry in entries] if skip else entries
    if skip and any(len(entry) < skip for entry in entries):
        raise IndexError("an entry that is shorter than its head")
    return array("i", accumulate(map(len, views), initial=0)).tobytes(), b"".join(views)


def join_batch(body: Buffer, skip: int) -> tuple[Buffer, bytes]:
    """Return the same as `join_payloads` for the body of a batch response. ValueError as `split_batch`."""
    return join_payloads(split_batch(body), skip)


def message_columns(
    data: Buffer, offsets: Buffer, first: int, bytes_max: int, wants_payload: bool, inflate: Inflate
) -> tuple[int, int, int, dict[str, Column], list[int]]:
    """Decode the messages of Pulsar entries from number `first` on, up to the first entry that is not supported here.

    `data` and `offsets`: the entries, as a column. It also stops after the entry with which the messages reach
    `bytes_max`. Supported are entries with a valid checksum, with or without preceding broker metadata, whose metadata
    are complete and contain only producer, sequence id, times, key, ordering key, properties, schema version,
    compression, batch size, null value, and fields without a column. In batches every message must be complete, and
    the rows at most 64 MiB. Not supported are chunks, markers, and entries that are encrypted, damaged, not UTF-8, or
    later than the year 9999; the caller decodes those itself.

    Returns the number of the entry after the last one, the number of rows, their approximate bytes, the columns, and
    the rows whose key is marked as base64. The columns are `source` (number of the entry, int64), `batch_index`,
    `publish_time` and `event_time` (ms), `sequence_id`, `size`, `producer`, `key`, `ordering_key`, `schema_version`,
    `properties` (offsets; offsets and bytes of keys; the same for values), and `payload` if wanted. Columns without any
    value (or property) are omitted.

    Plain Python decodes no entry, because it could do no better than the caller, which goes entry by entry.
    """
    return first, 0, 0, {}, []
