"""The nodes of auto-recovery, as far as they are needed here: the lock of a ledger's replication, and the marks.

The layout is BookKeeper's, so that its auto-recovery and ours keep out of each other's way:

/ledgers/underreplication/ledgers/<h1>/<h2>/<h3>/<h4>/urL%010d   mark: replicas are missing. Four hex digits a level
/ledgers/underreplication/locks/urL%010d                         ephemeral: somebody replicates the ledger
                                                                 value: protobuf text `bookieId: "<host>"`

A lock is a lease: it goes with the session. Whoever acts under it asks `is_held` right before the step that must not
race, and keeps that step short against the session's timeout.
"""

from quire_bookie.errors import BadVersionError, MetadataUnavailableError, MetadataUnknownError, NodeMissingError
from quire_bookie.metadata import layout
from quire_bookie.metadata.store import ABSENT, MetadataStore
from quire_bookie.model import LedgerId

UNDER_REPLICATION = f"{layout.ROOT}/underreplication"


def mark_path(ledger: LedgerId) -> str:
    """The node that says that replicas of a ledger are missing."""
    digits = f"{ledger:016x}"
    levels = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{UNDER_REPLICATION}/ledgers/{levels}/urL{ledger:010d}"


def lock_path(ledger: LedgerId) -> str:
    """The node that says that somebody replicates a ledger."""
    return f"{UNDER_REPLICATION}/locks/urL{ledger:010d}"


def encode_lock(host: str) -> bytes:
    """Value of a lock: whose it is, for a person."""
    quoted = host.replace("\\", "\\\\").replace('"', '\\"')
    return f'bookieId: "{quoted}"\n'.encode()


class ReplicationLocks:
    """Locks of one process. `host` is what others read as the owner."""

    def __init__(self, store: MetadataStore, host: str) -> None:
        self._store = store
        self._value = encode_lock(host)

    async def is_marked(self, ledger: LedgerId) -> bool:
        """Whether replicas of the ledger are missing, as far as an auditor said so. Linearizable."""
        return await self._store.get(mark_path(ledger)) is not None

    async def acquire(self, ledger: LedgerId) -> bool:
        """Take the lock of a ledger; False when another has it. MetadataError when that stays unknown."""
        path = lock_path(ledger)
        try:
            await self._store.put(path, self._value, expected=ABSENT, ephemeral=True)
            return True
        except BadVersionError:
            return False
        except MetadataUnknownError:
            return await self.is_held(ledger)

    async def is_held(self, ledger: LedgerId) -> bool:
        """Whether the lock is there and of this session, linearizable."""
        node = await self._store.get(lock_path(ledger))
        return node is not None and node.owned

    async def release(self, ledger: LedgerId) -> None:
        """Give the lock back. One that was lost is left to whom it belongs; one that cannot be reached expires."""
        try:
            node = await self._store.get(lock_path(ledger))
            if node is not None and node.owned:
                await self._store.delete(lock_path(ledger), expected=node.version)
        except (BadVersionError, NodeMissingError, MetadataUnavailableError, MetadataUnknownError):
            # It is no longer ours, or it goes with the session.
            return
