"""The steps of a broker from stored entries to MESSAGE frames, in plain Python: the specification and the fallback.

Pure, with native twins as in `plain`.

    totalSize(4) commandSize(4) 08 09 4a size  consumer size 08 ledger 10 entry partition [18 redeliveries]
                                               [20 word]... [28 epoch]  entry

Sizes after the first two and numbers are varints; `consumer` and `partition` are encoded fields of the command.
"""

import struct
from collections.abc import Sequence
from typing import TypeAlias

from quire_bookie.model import Buffer
from quire_bookie.varints import encode_varint

Delivered: TypeAlias = tuple[tuple[int, int], Buffer, int, Sequence[int] | None, int | None]
"""Ledger and entry ids, the stored entry, how often it was redelivered, words of its ack set, epoch of the consumer."""

_SIZES = struct.Struct(">II")
_U32 = struct.Struct(">I")
_COMMAND = b"\x08\x09\x4a"
_BROKER_MAGIC = b"\x0e\x02"
_BROKER_HEAD_BYTES = 6


def plain_heads(entries: list[Buffer], wants_keys: bool) -> tuple[list[int], list[bytes | None]]:
    """Return the number of messages of each plain entry, and what Key_Shared hashes of it if `wants_keys`.

    An entry is *plain* if its metadata are complete and contain only producer, sequence ids, times, key, ordering key,
    properties, schema version, compression, null values, replication clusters, ids of a transaction, and a batch size
    below 16,384. It is then no marker, no chunk and not delayed. All other entries have 0 messages, and the caller
    parses those itself; with `wants_keys` also those whose key is base64. The checksum is not checked.

    Plain Python recognises no entry, because it could do no better than the caller, which goes entry by entry.
    """
    return [0] * len(entries), [None] * len(entries) if wants_keys else []


def message_frames(
    consumer: bytes, partition: bytes, deliveries: Sequence[Delivered], strips: bool, joined_bytes_max: int
) -> tuple[list[Buffer], int]:
    """Encode the MESSAGE frames of one consumer. Return them, and the bytes of their entries.

    With `strips`, what a broker added before the message part of an entry is left out. Entries of at most
    `joined_bytes_max` bytes on average are copied into one buffer; others stay as they are, behind their heads.
    """
    parts: list[Buffer] = []
    size = 0
    starts: dict[tuple[int, int], tuple[bytes, int]] = {}
    for (ledger, entry), stored, redelivered, ack_set, epoch in deliveries:
        data = memoryview(stored)[_added_bytes(stored) :] if strips and stored[:2] == _BROKER_MAGIC else stored
        data_bytes = len(data)
        size += data_bytes
        entry_bytes = encode_varint(entry)
        if redelivered or ack_set or epoch is not None:
            end = partition
            if redelivered:
                end += b"\x18" + encode_varint(redelivered)
            if ack_set:
                end += b"".join([b"\x20" + encode_varint(word) for word in ack_set])
            if epoch is not None:
                end += b"\x28" + encode_varint(epoch)
            start, command_bytes = _start(consumer, ledger, len(entry_bytes), len(partition), len(end))
        else:
            end = partition
            known = starts.get((ledger, len(entry_bytes)))
            if known is None:
                known = _start(consumer, ledger, len(entry_bytes), len(end), len(end))
                starts[ledger, len(entry_bytes)] = known
            start, command_bytes = known
        if 4 + command_bytes + data_bytes >= 1 << 32:
            raise ValueError("a frame above 4 GiB")
        sizes = _SIZES.pack(4 + command_bytes + data_bytes, command_bytes)
        parts.append(b"%b%b%b%b" % (sizes, start, entry_bytes, end))
        parts.append(data)
    if size <= joined_bytes_max * len(deliveries):
        return [b"".join(parts)], size
    return parts, size


def _start(consumer: bytes, ledger: int, entry_bytes: int, partition_bytes: int, end_bytes: int) -> tuple[bytes, int]:
    """Return the bytes of a command before its entry id, and the size of the whole command."""
    ledger_field = b"\x08" + encode_varint(ledger) + b"\x10"
    head = consumer + encode_varint(len(ledger_field) + entry_bytes + partition_bytes)
    body_bytes = len(head) + len(ledger_field) + entry_bytes + end_bytes
    head = _COMMAND + encode_varint(body_bytes) + head
    return head + ledger_field, len(_COMMAND) + len(encode_varint(body_bytes)) + body_bytes


def _added_bytes(entry: Buffer) -> int:
    if len(entry) < _BROKER_HEAD_BYTES:
        return 0
    return min(len(entry), _BROKER_HEAD_BYTES + int(_U32.unpack_from(entry, 2)[0]))
