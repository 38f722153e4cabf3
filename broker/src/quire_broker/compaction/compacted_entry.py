"""The form of an entry in a compacted ledger: the stored entry, after the position that it has in its topic. Pure.

    id size (4) | MessageIdData | entry size (4) | entry

Source: `RawMessageImpl.serialize` of Pulsar, so that stock brokers read our compacted ledgers and we read theirs. The
id of a batch of which a part is left also has an ack set, which they ignore: its set bits are the messages that are
left.
"""

import struct
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from quire_bookie.errors import PeerProtocolError
from quire_bookie.model import Buffer
from quire_broker.managed_ledger.position import Position, StoredEntry
from quire_broker.wire.proto.pulsar_pb2 import MessageIdData

_U32 = struct.Struct(">I")
HEAD_BYTES_MAX = 64
"""Most bytes before the entry."""


def encode(position: Position, partition: int, entry: Buffer, live: Sequence[int] | None = None) -> tuple[Buffer, ...]:
    """Return the parts of one entry. `partition`: -1 for a plain topic. `live`: the messages kept of a batch."""
    message_id = encoded_id(position, partition, live or ())
    return _U32.pack(len(message_id)), message_id, _U32.pack(len(entry)), entry


def encoded_id(position: Position, partition: int, live: Sequence[int] = ()) -> bytes:
    """Return a position as an encoded MessageIdData."""
    found = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id, partition=partition, ack_set=live)
    return found.SerializeToString()


def decode(data: Buffer) -> StoredEntry:
    """Return the entry with its position in the topic; its data is a view. PeerProtocolError."""
    view = memoryview(data)
    try:
        body = 4 + _U32.unpack_from(view, 0)[0]
        message_id = MessageIdData.FromString(bytes(view[4:body]))
        size = _U32.unpack_from(view, body)[0]
    except (struct.error, DecodeError) as error:
        raise PeerProtocolError(f"an entry of a compacted ledger without a readable message id: {error}") from error
    entry = view[body + 4 :]
    if size != len(entry) or not message_id.IsInitialized():
        raise PeerProtocolError(f"an entry of a compacted ledger declares {size} bytes and has {len(entry)}")
    return StoredEntry(Position(message_id.ledgerId, message_id.entryId), entry, tuple(message_id.ack_set) or None)
