"""Encodes by hand the commands that a broker writes once per message: SEND_RECEIPT and MESSAGE.

A batch of them becomes one buffer, or one list for a gathering write; entries are never copied or re-encoded.
"""

import struct
from collections.abc import Iterable, Sequence

from quire_bookie.bulk import message_frames
from quire_bookie.bulk.plain_deliveries import Delivered
from quire_bookie.model import Buffer
from quire_broker.wire.varint import varint

_SIZES = struct.Struct(">II")
_MINUS_ONE = varint(-1)
# Depending on its length, a receipt's frame begins with one of these; it is always shorter than 128 bytes.
_RECEIPT_HEADS = tuple(_SIZES.pack(length + 8, length + 4) + b"\x08\x07\x3a" + varint(length) for length in range(128))
_LENGTHS = tuple(b"\x1a" + varint(length) for length in range(128))
COPIED_ENTRY_BYTES = 8192
"""Entries that are smaller on average are copied into one buffer with their heads."""


def encode_receipts(producer_id: int, receipts: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Return joined SEND_RECEIPT frames of (sequence id, highest sequence id, ledger id, entry id), in that order."""
    producer = b"\x08" + varint(producer_id) + b"\x10"
    parts: list[bytes] = []
    last_ledger, ledger_bytes = -2, b""
    last_highest, highest_bytes = 0, b"\x20\x00"
    for sequence_id, highest_sequence_id, ledger_id, entry_id in receipts:
        if ledger_id != last_ledger:
            last_ledger, ledger_bytes = ledger_id, b"\x08" + varint(ledger_id) + b"\x10"
        if highest_sequence_id != last_highest:
            last_highest, highest_bytes = highest_sequence_id, b"\x20" + varint(highest_sequence_id)
        message_id = ledger_bytes + varint(entry_id)
        body = b"%b%b%b%b%b" % (producer, varint(sequence_id), _LENGTHS[len(message_id)], message_id, highest_bytes)
        parts.append(_RECEIPT_HEADS[len(body)])
        parts.append(body)
    return b"".join(parts)


class MessageFrames:
    """Encodes the MESSAGE frames of one consumer."""

    __slots__ = ("_consumer", "_partition")

    def __init__(self, consumer_id: int, partition: int = -1) -> None:
        self._consumer = b"\x08" + varint(consumer_id) + b"\x12"
        self._partition = b"\x18" + (_MINUS_ONE if partition == -1 else varint(partition))

    def encode(self, deliveries: Sequence[Delivered], *, strips: bool) -> tuple[list[Buffer], int]:
        """Return the frames and the bytes of their entries; with `strips` without what a broker added to them."""
        return message_frames(self._consumer, self._partition, deliveries, strips, COPIED_ENTRY_BYTES)


def encode_send(producer_id: int, sequence_id: int, entry: bytes, messages: int = 1) -> bytes:
    """Encode a SEND of one message or of a batch of `messages`, as a client writes it."""
    body = b"\x08%b\x10%b" % (varint(producer_id), varint(sequence_id))
    if messages > 1:
        body += b"\x18" + varint(messages)
    command = b"\x08\x06\x32%b%b" % (varint(len(body)), body)
    return _SIZES.pack(len(command) + 4 + len(entry), len(command)) + command + entry
