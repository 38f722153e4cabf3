"""The steps of a broker over the SENDs of one received buffer and over their receipts, in plain Python.

Pure: the specification and the fallback, with native twins as in `plain`.

    SEND     totalSize(4) commandSize(4) 08 06 32 size  08 producer 10 sequence [18 messages] [30 highest]  entry
    receipt  totalSize(4) commandSize(4) 08 07 3a size  08 producer 10 sequence 1a size 08 ledger 10 entry 20 highest

Sizes after the first two and numbers are varints; negative numbers take ten bytes.
"""

import struct
from collections.abc import Sequence
from typing import TypeAlias

from quire_bookie.varints import encode_varint

Sent: TypeAlias = tuple[int, int | None, int, bool, bool, memoryview, bool]
"""Sequence id, highest sequence id, messages, False, False, entry, whether the entry is sound."""

_SIZES = struct.Struct(">II")


def take_sends(data: bytes, position: int, frame_bytes_max: int) -> tuple[int, int, list[Sent]]:
    """Decode consecutive plain SENDs of one producer from `position` on.

    Returns the position after the last one, the producer's id, and the SENDs, in order. A SEND is *plain* if it has
    the form above, with numbers below 2**63 and at most 16,383 messages. An entry is *sound* if its checksum is valid
    and its metadata are complete and contain only fields of `plain_heads` or a delivery time; others may be sound, too.
    Ends before an incomplete frame and before one whose size is above `frame_bytes_max`. Without any plain SEND the
    position is `position`, and the producer -1.

    Plain Python decodes none, because it could do no better than the caller, which goes frame by frame.
    """
    return position, -1, []


def encode_receipts(producer_id: int, receipts: Sequence[tuple[int, int, int, int]]) -> bytes:
    """Return joined SEND_RECEIPT frames of (sequence id, highest sequence id, ledger id, entry id), in that order."""
    producer = b"\x08" + encode_varint(producer_id) + b"\x10"
    parts: list[bytes] = []
    for sequence_id, highest_sequence_id, ledger_id, entry_id in receipts:
        message_id = b"\x08" + encode_varint(ledger_id) + b"\x10" + encode_varint(entry_id)
        highest = b"\x20" + encode_varint(highest_sequence_id)
        body = b"%b%b\x1a%c%b%b" % (producer, encode_varint(sequence_id), len(message_id), message_id, highest)
        parts.append(_SIZES.pack(len(body) + 8, len(body) + 4) + b"\x08\x07\x3a%c" % len(body))
        parts.append(body)
    return b"".join(parts)
