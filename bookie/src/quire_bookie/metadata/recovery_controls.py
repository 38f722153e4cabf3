"""The switches and clocks of auto-recovery that all its processes share. Owns these nodes; acts on none.

/ledgers/underreplication/LAYOUT                    protobuf text: type "BASIC", version 1; made by whoever comes first
/ledgers/underreplication/disable                   there: nobody audits or replicates
/ledgers/underreplication/lostBookieRecoveryDelay   seconds as decimal text; written again unchanged: audit now
/ledgers/underreplication/checkallledgersctime      protobuf binary, field 1: ms of the last full check; likewise
                         /placementpolicycheckctime, /replicascheckctime

The formats are BookKeeper's, so that its auto-recovery obeys what is set here, and the other way round.
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
    """A periodic check whose last run is remembered; the value is the node's name."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class MissingGivenUp:
    """Tells when a person says that the missing bookies do not come back: the delay was written again unchanged.

    Another delay is no such word: who gives bookies more time must not lose those that are away.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: Node | None = None

    async def said(self) -> bool:
        """Whether that was said since the last call; the first only learns the delay. MetadataUnavailableError."""
        before, self._known = self._known, await self._store.get(LOST_BOOKIE_DELAY)
        if before is None or self._known is None:
            return False
        written = self._known.version - before.version
        # Written twice before we looked: a new delay, and the word right behind it.
        return written > 1 or (written == 1 and self._known.value == before.value)


class RecoveryControls:
    """Reads and sets them. A write whose outcome stays unknown raises MetadataUnknownError: set it again."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def ensure_layout(self) -> None:
        """Create LAYOUT unless it is there. MetadataFormatError: another layout is in use, leave it alone."""
        node = await self._store.get(LAYOUT)
        if node is None:
            try:
                await self._repeat(lambda: self._store.put(LAYOUT, _LAYOUT_VALUE, expected=ABSENT))
                return
            except BadVersionError:
                node = await self._store.get(LAYOUT)
        if node is not None and b'"BASIC"' not in node.value:
            raise MetadataFormatError(f"{LAYOUT}: {node.value[:80]!r} is no layout that is known here")

    async def is_enabled(self) -> bool:
        """Whether auditors and workers may act."""
        return await self._store.get(DISABLE) is None

    async def enable(self) -> None:
        """Auto-recovery goes on. On already is fine."""
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
            raise MetadataUnknownError(f"{DISABLE} may still be there")

    async def disable(self) -> None:
        """No audit and no replication begins from here on. Off already is fine."""
        await self._repeat(lambda: self._store.put(DISABLE, b""))

    async def lost_bookie_delay_s(self) -> int | None:
        """Seconds between the loss of a bookie and its audit; None: nobody said. MetadataFormatError."""
        node = await self._store.get(LOST_BOOKIE_DELAY)
        if node is None:
            return None
        try:
            delay_s = int(node.value)
        except ValueError as error:
            raise MetadataFormatError(f"{LOST_BOOKIE_DELAY}: {node.value[:32]!r} is no number of seconds") from error
        return max(0, delay_s)

    async def set_lost_bookie_delay_s(self, delay_s: int) -> None:
        """Set it. The value it has already: audit lost bookies now."""
        await self._repeat(lambda: self._store.put(LOST_BOOKIE_DELAY, b"%d" % delay_s))

    async def ensure_lost_bookie_delay_s(self, default_s: int) -> int:
        """The delay, after having set the default where nobody said one."""
        found = await self.lost_bookie_delay_s()
        if found is not None:
            return found
        try:
            await self._repeat(lambda: self._store.put(LOST_BOOKIE_DELAY, b"%d" % default_s, expected=ABSENT))
        except BadVersionError:
            return await self.lost_bookie_delay_s() or 0
        return default_s

    async def last_check_ms(self, kind: CheckKind) -> int | None:
        """Wall clock at the end of the last such check; None when there was none, or its time does not parse."""
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
        """Remember the end of a check."""
        value = nodes_pb2.CheckTimeFormat(time=time_ms).SerializeToString()
        await self._repeat(lambda: self._store.put(f"{UNDER_REPLICATION}/{kind.value}", value))

    async def _repeat(self, write: Callable[[], Awaitable[object]]) -> None:
        """A write that may be done twice, until its outcome is known."""
        unknown: MetadataUnknownError | None = None
        for _ in range(METADATA_UNKNOWN_RETRIES):
            try:
                await write()
                return
            except MetadataUnknownError as error:
                unknown = error
        assert unknown is not None
        raise unknown
