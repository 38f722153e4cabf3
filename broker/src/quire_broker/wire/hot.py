"""Encodes by hand MESSAGE, which a broker writes once per message, and SEND as clients write it.

The MESSAGEs of a consumer become one buffer, or one list for a gathering write; entries are never re-encoded. Receipts:
`quire_bookie.bulk.plain_sends`.
"""

import struct
from collections.abc import Sequence

from quire_bookie.bulk import message_frames
from quire_bookie.bulk.plain_deliveries import Delivered
from quire_bookie.model import Buffer
from quire_broker.wire.varint import varint

_SIZES = struct.Struct(">II")
_MINUS_ONE = varint(-1)
COPIED_ENTRY_BYTES = 8192
"""Entries that are smaller on average are copied into one buffer with their heads."""


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
    return send_head(producer_id, sequence_id, len(entry), messages) + entry


def send_head(
    producer_id: int, sequence_id: int, entry_bytes: int, messages: int = 1, highest_sequence_id: int | None = None
) -> bytes:
    """Encode what precedes the entry in a SEND."""
    body = b"\x08%b\x10%b" % (varint(producer_id), varint(sequence_id))
    if messages > 1:
        body += b"\x18" + varint(messages)
    if highest_sequence_id is not None:
        body += b"\x30" + varint(highest_sequence_id)
    command = b"\x08\x06\x32%b%b" % (varint(len(body)), body)
    return _SIZES.pack(len(command) + 4 + entry_bytes, len(command)) + command
