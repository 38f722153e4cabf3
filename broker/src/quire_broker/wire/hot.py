"""Encodes by hand the commands that a broker writes once per message: SEND_RECEIPT and MESSAGE.

A batch of them becomes one buffer, or one list for a gathering write; entries are never copied or re-encoded.
"""

import struct
from collections.abc import Iterable, Sequence

from quire_broker.wire.varint import varint

_SIZES = struct.Struct(">II")
_MINUS_ONE = varint(-1)
# Depending on its length, a receipt's frame begins with one of these; it is always shorter than 128 bytes.
_RECEIPT_HEADS = tuple(_SIZES.pack(length + 8, length + 4) + b"\x08\x07\x3a" + varint(length) for length in range(128))
_LENGTHS = tuple(b"\x1a" + varint(length) for length in range(128))
_MESSAGE = b"\x08\x09\x4a"


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


class MessageHeads:
    """Encodes the part of a MESSAGE frame before the entry, for one consumer."""

    __slots__ = ("_consumer", "_end", "_epoch", "_ledger_id", "_partition", "_starts")

    def __init__(self, consumer_id: int, partition: int = -1) -> None:
        self._ledger_id = -2
        self._starts: dict[int, tuple[bytes, int]] = {}  # by size of the entry id: the bytes before it, and size
        self._consumer = b"\x08" + varint(consumer_id) + b"\x12"
        self._partition = self._end = b"\x18" + (_MINUS_ONE if partition == -1 else varint(partition))
        self._epoch: int | None = None

    def encode(
        self,
        ledger_id: int,
        entry_id: int,
        entry_size: int,
        redelivery_count: int = 0,
        ack_set: Sequence[int] | None = None,
        consumer_epoch: int | None = None,
    ) -> bytes:
        """Return the head of one MESSAGE; `entry_size` bytes of stored entry must follow it."""
        if not redelivery_count and not ack_set:
            if ledger_id != self._ledger_id or consumer_epoch != self._epoch:
                self._begin(ledger_id, consumer_epoch)
            entry_bytes = varint(entry_id)
            start, size = self._starts.get(len(entry_bytes)) or self._start(ledger_id, len(entry_bytes))
            return b"%b%b%b%b" % (_SIZES.pack(size + 4 + entry_size, size), start, entry_bytes, self._end)
        message_id = b"\x08%b\x10%b%b" % (varint(ledger_id), varint(entry_id), self._partition)
        body = b"%b%b%b" % (self._consumer, varint(len(message_id)), message_id)
        if redelivery_count:
            body += b"\x18" + varint(redelivery_count)
        if ack_set:
            body += b"".join([b"\x20" + varint(word) for word in ack_set])
        if consumer_epoch is not None:
            body += b"\x28" + varint(consumer_epoch)
        command = b"%b%b%b" % (_MESSAGE, varint(len(body)), body)
        return _SIZES.pack(len(command) + 4 + entry_size, len(command)) + command

    def _begin(self, ledger_id: int, consumer_epoch: int | None) -> None:
        """Use another ledger and epoch from now on."""
        self._ledger_id, self._epoch = ledger_id, consumer_epoch
        self._end = self._partition if consumer_epoch is None else self._partition + b"\x28" + varint(consumer_epoch)
        self._starts.clear()

    def _start(self, ledger_id: int, entry_bytes: int) -> tuple[bytes, int]:
        """Return the common first bytes of a ledger's messages with entry ids of this size, and the command's size."""
        ledger = b"\x08" + varint(ledger_id) + b"\x10"
        id_size = len(ledger) + entry_bytes + len(self._partition)
        rest_size = len(ledger) + entry_bytes + len(self._end)
        consumer = self._consumer + varint(id_size)
        head = _MESSAGE + varint(len(consumer) + rest_size) + consumer
        made = self._starts[entry_bytes] = (head + ledger, len(head) + rest_size)
        return made


def encode_send(producer_id: int, sequence_id: int, entry: bytes, messages: int = 1) -> bytes:
    """Encode a SEND of one message or of a batch of `messages`, as a client writes it."""
    body = b"\x08%b\x10%b" % (varint(producer_id), varint(sequence_id))
    if messages > 1:
        body += b"\x18" + varint(messages)
    command = b"\x08\x06\x32%b%b" % (varint(len(body)), body)
    return _SIZES.pack(len(command) + 4 + len(entry), len(command)) + command + entry
