"""Decides whether missing metadata proves that a ledger was deleted. Deletes nothing itself.

Each source returns a reason for doubt, or None:
* the INSTANCEID: an emptied or foreign store has no ledgers;
* a hold on this bookie or on the cluster, set by an administrator or by a tool that changes metadata in bulk;
* an open restoration: ledgers newer than the backup are not settled yet;
* the session: while it is lost, and in the round in which it was lost or replaced, it is unknown which store answered.
`add` adds further sources. Garbage collection checks all of them before it puts a ledger into quarantine and before it
deletes one. A listing that fails or ends early counts as a doubt: it raises.
"""

from collections.abc import Awaitable, Callable

from quire_bookie.errors import MetadataError
from quire_bookie.metadata.collection_hold import read_collection_hold
from quire_bookie.metadata.initialise import read_instance_id
from quire_bookie.metadata.restoration import read_restoration
from quire_bookie.metadata.store import MetadataStore, SessionState
from quire_bookie.server.upkeep.gc_fuse import GcFuse

DoubtSource = Callable[[], Awaitable[str | None]]
"""Returns why the metadata proves nothing now, or None. An error that it raises counts as a doubt."""


class InDoubtError(MetadataError):
    """The metadata is in doubt: nothing is deleted, and no time in quarantine counts."""


class CollectionHeldError(InDoubtError):
    """A hold of an administrator or a tool forbids deletions."""


class CollectionDoubts:
    """Checks all sources of doubt of one bookie."""

    def __init__(self, store: MetadataStore, instance_id: str, fuse: GcFuse) -> None:
        self._store = store
        self._instance_id = instance_id
        self._fuse = fuse
        self._session_lost = False
        self._session_changes = 0
        self._changes_seen = 0
        self._sources: list[DoubtSource] = [self._session, self._instance, self._restoration]
        self.hold: str | None = None
        """The hold found by the last check."""

    def add(self, source: DoubtSource) -> None:
        """Add a source."""
        self._sources.append(source)

    def watch_session(self) -> Callable[[], None]:
        """Track changes of the session; return a function that ends this."""
        return self._store.on_session(self._on_session)

    def _on_session(self, state: SessionState) -> None:
        self._session_lost = state is SessionState.LOST
        self._session_changes += state is not SessionState.CONNECTED

    def begin_round(self) -> bool:
        """Ignore earlier changes of the session. Return whether it changed since the last call."""
        changed, self._changes_seen = self._session_changes != self._changes_seen, self._session_changes
        return changed

    async def doubt(self) -> str | None:
        """Return the first reason not to trust the metadata, or None. MetadataError, StorageError."""
        self.hold = None
        for source in self._sources:
            reason = await source()
            if reason is not None:
                return reason
        await self._fuse.load()
        self.hold = self._fuse.hold or await read_collection_hold(self._store)
        return None if self.hold is None else f"on hold: {self.hold}"

    async def check(self) -> None:
        """Raise InDoubtError, or CollectionHeldError for a hold, unless the metadata is beyond doubt."""
        reason = await self.doubt()
        if self.hold is not None:
            raise CollectionHeldError(f"{reason}")
        if reason is not None:
            raise InDoubtError(f"{reason}: nothing is deleted")

    async def _session(self) -> str | None:
        if self._session_lost:
            return "the session with the metadata store is lost"
        if self._session_changes != self._changes_seen:
            return "the session with the metadata store was lost during this round of garbage collection"
        return None

    async def _instance(self) -> str | None:
        found = await read_instance_id(self._store)
        if found == self._instance_id:
            return None
        return f"the metadata store is of cluster {found}, this bookie of {self._instance_id}"

    async def _restoration(self) -> str | None:
        found = await read_restoration(self._store)
        if found is None:
            return None
        return f"the metadata was restored from backup {found.value.backup}, and newer ledgers are not settled"
