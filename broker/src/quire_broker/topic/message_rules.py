"""Decides which messages the policies of a topic refuse: those that are too large, or not encrypted. Pure.

The size is that of the entry, with its metadata, as in Pulsar. A chunk of a larger message may have any size.
"""

from collections.abc import Mapping
from typing import Any, Final

from quire_bookie.dataclass import dataclass
from quire_broker.errors import ServerError
from quire_broker.topic.producers import Refusal
from quire_broker.wire.entry import peek
from quire_broker.wire.frames import Send

SIZE: Final = "max_message_size"
ENCRYPTED: Final = "encryption_required"


@dataclass(frozen=True, slots=True)
class MessageRules:
    """The rules of one topic. `bytes_max`: 0 for none but that of the broker."""

    bytes_max: int = 0
    encrypted: bool = False

    @property
    def active(self) -> bool:
        """Whether any message may be refused."""
        return self.encrypted or self.bytes_max > 0

    def refusal_of(self, send: Send) -> Refusal | None:
        """Return the answer to a send that is refused; None: it may be stored. Clients drop only this message."""
        size, text = len(send.entry), ""
        if self.bytes_max and size > self.bytes_max and not send.is_chunk:
            text = f"Exceed maximum message size: {size} bytes, the policy maxMessageSize is {self.bytes_max}"
        elif self.encrypted and not peek(send.entry).metadata.encryption_keys:
            text = "Messages must be encrypted: the namespace has the policy encryptionRequired"
        highest = max(send.sequence_id, send.highest_sequence_id or 0)
        return Refusal(highest, ServerError.NOT_ALLOWED, text) if text else None


def message_rules_of(policies: Mapping[str, Any]) -> MessageRules:
    """Return the rules in the policies of a topic."""
    size = policies.get(SIZE)
    return MessageRules(size if type(size) is int and size > 0 else 0, policies.get(ENCRYPTED) is True)
