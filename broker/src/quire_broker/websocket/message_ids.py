"""Ids of messages as texts: the MessageIdData of Pulsar's protocol in base64, as Java's `MessageId.toByteArray`."""

import base64
from typing import NamedTuple

from google.protobuf.message import DecodeError

from quire_bookie.errors import PeerProtocolError
from quire_broker.limits import BATCH_MESSAGES_MAX
from quire_broker.wire.proto.pulsar_pb2 import MessageIdData

_CHARACTERS_MAX = 1_000


class MessageId(NamedTuple):
    """The place of one message. `batch_index` is -1 outside a batch; `first`: the first chunk of a chunked message."""

    ledger_id: int
    entry_id: int
    partition: int = -1
    batch_index: int = -1
    batch_size: int = 0
    first: tuple[int, int] | None = None

    @property
    def entry(self) -> tuple[int, int]:
        """Ledger and entry, which the messages of a batch share."""
        return self.ledger_id, self.entry_id

    def shown(self) -> str:
        """Return the id as Java's `MessageId.toString`, which properties of messages hold."""
        batch = f":{self.batch_index}" if self.batch_index >= 0 else ""
        first = f"{self.first[0]}:{self.first[1]}:{self.partition};" if self.first else ""
        return f"{first}{self.ledger_id}:{self.entry_id}:{self.partition}{batch}"

    def text(self) -> str:
        """Return the id as clients get it."""
        found = MessageIdData(ledgerId=self.ledger_id, entryId=self.entry_id)
        if self.partition >= 0:
            found.partition = self.partition
        if self.batch_index >= 0:
            found.batch_index, found.batch_size = self.batch_index, self.batch_size
        if self.first is not None:
            first = found.first_chunk_message_id
            first.ledgerId, first.entryId = self.first
            if self.partition >= 0:
                first.partition = self.partition
        return base64.b64encode(found.SerializeToString()).decode()


def message_id_of(text: object) -> MessageId:
    """Parse an id that a client sends. PeerProtocolError."""
    if not isinstance(text, str) or not text or len(text) > _CHARACTERS_MAX:
        raise PeerProtocolError("messageId must be the messageId of a message, as a text")
    try:
        found = MessageIdData.FromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError) as error:
        raise PeerProtocolError(f"messageId {text[:100]!r} is not the id of a message: {error}") from error
    if not found.IsInitialized():
        raise PeerProtocolError(f"messageId {text[:100]!r} names no ledger and entry")
    if found.batch_index < 0:
        place = found.first_chunk_message_id
        first = (place.ledgerId, place.entryId) if found.HasField("first_chunk_message_id") else None
        return MessageId(found.ledgerId, found.entryId, found.partition, first=first)
    if not found.batch_index < found.batch_size <= BATCH_MESSAGES_MAX:
        raise PeerProtocolError(f"messageId names message {found.batch_index} of a batch of {found.batch_size}")
    return MessageId(found.ledgerId, found.entryId, found.partition, found.batch_index, found.batch_size)
