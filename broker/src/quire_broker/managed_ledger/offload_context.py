"""What a ledger's record says of its copy in a bucket: codec of the offload context. Pure.

    no context                        only the bookies have it
    uuid, not complete                an attempt: somebody writes objects under this uuid, or did
    uuid, complete                    the objects hold all of it; the bookies do, too
    uuid, complete, bookies deleted   only the objects hold it

`OWNER` and `BEGUN` are properties of an attempt of ours; they go when it is complete. Everything else is as the stock
system writes it. What it writes for streaming offloads is kept and not read: their objects have another format.
"""

from dataclasses import dataclass, replace
from typing import Final

from google.protobuf.message import DecodeError

from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.proto import managed_ledger_pb2 as pb
from quire_broker.offload.format import uuid_halves, uuid_text

OWNER: Final = "quireAttemptOwner"
BEGUN: Final = "quireAttemptBegunMs"


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """See the module's text. `uuid` empty: of a streaming offload. `offloaded_ms`: when it was complete."""

    uuid: str
    driver: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    complete: bool = False
    bookies_deleted: bool = False
    offloaded_ms: int = 0
    extra: bytes = b""
    """Fields that are not read, as they were."""

    @property
    def begun_ms(self) -> int:
        """When the attempt was begun; 0 for one of the stock system, which does not say."""
        text = dict(self.properties).get(BEGUN, "")
        return int(text) if text.isascii() and text.isdecimal() else 0

    @property
    def owner(self) -> str:
        """Who made the attempt, as they call themselves."""
        return dict(self.properties).get(OWNER, "")

    def completed(self, now_ms: int) -> "OffloadContext":
        """The same, from now on to be read."""
        plain = tuple(pair for pair in self.properties if pair[0] not in (OWNER, BEGUN))
        return replace(self, complete=True, offloaded_ms=now_ms, properties=plain)


def encode_context(context: OffloadContext) -> bytes:
    """As the ledger's record has it."""
    message = pb.OffloadContext()
    if context.uuid:
        message.uidMsb, message.uidLsb = uuid_halves(context.uuid)
    if context.complete:
        message.complete = True
    if context.bookies_deleted:
        message.bookkeeperDeleted = True
    if context.offloaded_ms:
        message.timestamp = context.offloaded_ms
    if context.driver:
        message.driverMetadata.name = context.driver
        for key, value in context.properties:
            message.driverMetadata.properties.add(key=key, value=value)
    if context.extra:
        message.MergeFromString(context.extra)
    return message.SerializeToString()


def decode_context(value: bytes) -> OffloadContext:
    """What was stored. MetadataFormatError."""
    message = pb.OffloadContext()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise MetadataFormatError(f"no offload context: {error}") from error
    if not message.IsInitialized():
        raise MetadataFormatError("no offload context: a required field is missing")
    driver = message.driverMetadata
    context = OffloadContext(
        uuid_text(message.uidMsb, message.uidLsb) if message.HasField("uidMsb") else "",
        driver.name if message.HasField("driverMetadata") else "",
        tuple((known.key, known.value) for known in driver.properties),
        message.complete,
        message.bookkeeperDeleted,
        message.timestamp,
    )
    for name in ("uidMsb", "uidLsb", "complete", "bookkeeperDeleted", "timestamp", "driverMetadata"):
        message.ClearField(name)
    return replace(context, extra=message.SerializeToString())
