"""Codec of the offload context: the part of a ledger's record that describes its copy in a bucket. Pure.

    no context                        only the bookies have the ledger
    uuid, not complete                an attempt: a writer creates objects under this uuid, or did so
    uuid, complete                    the objects hold the whole ledger, and so do the bookies
    uuid, complete, bookies deleted   only the objects hold the ledger

`OWNER` and `BEGUN` are properties of Quire's attempts and are removed on completion. Everything else has Pulsar's form.
Contexts of Pulsar's streaming offloads are preserved but not read: their objects have another format.
"""

from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataFormatError
from quire_broker.managed_ledger.nodes.proto import managed_ledger_pb2 as pb
from quire_broker.offload.format import uuid_halves, uuid_text

OWNER: Final = "quireAttemptOwner"
BEGUN: Final = "quireAttemptBegunMs"


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """See the module docstring. An empty `uuid` is a streaming offload. `offloaded_ms` is the time of completion."""

    uuid: str
    driver: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    complete: bool = False
    bookies_deleted: bool = False
    offloaded_ms: int = 0
    extra: bytes = b""
    """Fields that are not interpreted, preserved as read."""

    @property
    def begun_ms(self) -> int:
        """The time at which the attempt began; 0 for an attempt of Pulsar, which does not store it."""
        text = dict(self.properties).get(BEGUN, "")
        return int(text) if text.isascii() and text.isdecimal() else 0

    @property
    def owner(self) -> str:
        """The name that the owner of the attempt gave itself."""
        return dict(self.properties).get(OWNER, "")

    def completed(self, now_ms: int) -> "OffloadContext":
        """Return the completed context, so that the objects are read from now on."""
        plain = tuple(pair for pair in self.properties if pair[0] not in (OWNER, BEGUN))
        return replace(self, complete=True, offloaded_ms=now_ms, properties=plain)


def encode_context(context: OffloadContext) -> bytes:
    """Encode the context as stored in a ledger's record."""
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
    """Decode a stored context. MetadataFormatError."""
    message = pb.OffloadContext()
    try:
        message.ParseFromString(value)
    except DecodeError as error:
        raise MetadataFormatError(f"not an offload context: {error}") from error
    if not message.IsInitialized():
        raise MetadataFormatError("not an offload context: a required field is missing")
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
