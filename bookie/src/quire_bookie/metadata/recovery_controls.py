"""Owns the nodes with the switches and times that all processes of auto-recovery share. Acts on none of them.

/ledgers/underreplication/LAYOUT                    protobuf text: type "BASIC", version 1; created by the first process
/ledgers/underreplication/disable                   while it exists no process audits or replicates
/ledgers/underreplication/lostBookieRecoveryDelay   seconds as decimal text; rewriting the same value: audit now
/ledgers/underreplication/checkallledgersctime      protobuf binary, field 1: ms of the last full check; also for
                         /placementpolicycheckctime, /replicascheckctime

The formats are BookKeeper's, so that its auto-recovery and ours obey the same settings.
"""

from collections.abc import Awaitable, Callable
from enum import Enum

from google.protobuf.message import DecodeError

from quire_bookie.errors import BadVersionError, MetadataFormatError, MetadataUnknownError, NodeMissingError
from quire_bookie.limits import METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata.proto import nodes_pb2
from quire_bookie.metadata.store import ABSENT, MetadataStore, Node
from quire_bookie.metadata.under_replication import UNDER_REPLICATION

LAYOUT = f"{UNDER_REPLICATION}/LAYOUT"
DISABLE = f"{UNDER_REPLICATION}/disable"
LOST_BOOKIE_DELAY = f"{UNDER_REPLICATION}/lostBookieRecoveryDelay"
_LAYOUT_VALUE = b'type: "BASIC"\nversion: 1\n'


class CheckKind(Enum):
    """A periodic check whose last run is recorded; the value is the node's name."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class MissingGivenUp:
    """Detects that the operator declared the missing bookies lost, by rewriting the delay with the same value.

    A different delay is not such a request: granting bookies more time must not give up the missing ones.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: Node | None = None

    async def was_requested(self) -> bool:
        """Return whether it happened since the last call; the first only reads the delay. MetadataUnavailableError."""
        before, self._known = self._known, await self._store.get(LOST_BOOKIE_DELAY)
        if before is None or self._known is None:
            return False
        written = self._known.version - before.version
        # Two writes since the last read: a new delay, followed by the request.
        return written > 1 or (written == 1 and self._known.value == before.value)


class RecoveryControls:
    """Reads and sets the controls. A write of unknown outcome raises MetadataUnknownError: set it again."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def ensure_layout(self) -> None:
        """Create LAYOUT unless it exists. MetadataFormatError if another layout is in use, which stays unchanged."""
        node = await self._store.get(LAYOUT)
        if node is None:
            try:
                await self._repeat(lambda: self._store.put(LAYOUT, _LAYOUT_VALUE, expected=ABSENT))
                return
            except BadVersionError:
                node = await self._store.get(LAYOUT)
        if node is not None and b'"BASIC"' not in node.value:
            raise MetadataFormatError(f"{LAYOUT}: {node.value[:80]!r} is not a known layout")

    async def is_enabled(self) -> bool:
        """Return whether auditors and workers may act."""
        return await self._store.get(DISABLE) is None

    async def enable(self) -> None:
        """Resume auto-recovery. Does nothing if it is on already."""
        for _ in range(METADATA_UNKNOWN_RETRIES):
            try:
                await self._store.delete(DISABLE)
            except NodeMissingError:
                return
            except MetadataUnknownError:
                continue
            else:
                return
        if not await self.is_enabled():
            raise MetadataUnknownError(f"{DISABLE} may still exist")

    async def disable(self) -> None:
        """Stop new audits and replications. Does nothing if it is off already."""
        await self._repeat(lambda: self._store.put(DISABLE, b""))

    async def lost_bookie_delay_s(self) -> int | None:
        """Return the seconds between the loss of a bookie and its audit; None: not set. MetadataFormatError."""
        node = await self._store.get(LOST_BOOKIE_DELAY)
        if node is None:
            return None
        try:
            delay_s = int(node.value)
        except ValueError as error:
            raise MetadataFormatError(f"{LOST_BOOKIE_DELAY}: {node.value[:32]!r} is not a number of seconds") from error
        return max(0, delay_s)

    async def set_lost_bookie_delay_s(self, delay_s: int) -> None:
        """Set the delay. Setting the present value again requests an audit of lost bookies now."""
        await self._repeat(lambda: self._store.put(LOST_BOOKIE_DELAY, b"%d" % delay_s))

    async def ensure_lost_bookie_delay_s(self, default_s: int) -> int:
        """Return the delay; set the default first if there is none."""
        found = await self.lost_bookie_delay_s()
        if found is not None:
            return found
        try:
            await self._repeat(lambda: self._store.put(LOST_BOOKIE_DELAY, b"%d" % default_s, expected=ABSENT))
        except BadVersionError:
            return await self.lost_bookie_delay_s() or 0
        return default_s

    async def last_check_ms(self, kind: CheckKind) -> int | None:
        """Return the wall clock time of the end of the last such check; None if there is none or it does not parse."""
        node = await self._store.get(f"{UNDER_REPLICATION}/{kind.value}")
        if node is None:
            return None
        message = nodes_pb2.CheckTimeFormat()
        try:
            message.ParseFromString(node.value)
        except DecodeError:
            return None
        return message.time if message.HasField("time") else None

    async def set_last_check_ms(self, kind: CheckKind, time_ms: int) -> None:
        """Record the end of a check."""
        value = nodes_pb2.CheckTimeFormat(time=time_ms).SerializeToString()
        await self._repeat(lambda: self._store.put(f"{UNDER_REPLICATION}/{kind.value}", value))

    async def _repeat(self, write: Callable[[], Awaitable[object]]) -> None:
        """Repeat an idempotent write until its outcome is known."""
        unknown: MetadataUnknownError | None = None
        for _ in range(METADATA_UNKNOWN_RETRIES):
            try:
                await write()
                return
            except MetadataUnknownError as error:
                unknown = error
        assert unknown is not None
        raise unknown
