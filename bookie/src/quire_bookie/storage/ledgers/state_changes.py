"""Durable changes of ledger states: entering limbo, leaving it, and restoring a lost key.

Owns their order: memory first, so that no request sees the weaker state, then the record beside the logs, then the
index. Runs under the storage's write lock. Never invents a ledger or a key.
"""

from collections.abc import Awaitable, Callable, Sequence

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import NoSuchLedgerError
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.index_keys import STATES_END, STATES_START, ledger_of_state_key, state_key
from quire_bookie.storage.index.index_commits import IndexCommits
from quire_bookie.storage.ledgers.ledger_states import (
    UNKNOWN_KEY_BYTES,
    LedgerInfo,
    LedgerStates,
    decode_state,
    encode_state,
)
from quire_bookie.storage.ledgers.limbo import load_limbo, store_limbo

LoadLedger = Callable[[LedgerId], Awaitable[LedgerInfo | None]]


class StateChanges:
    """Applies changes of limbo and keys. The caller holds the write lock."""

    def __init__(
        self,
        disk: Disk,
        index: IndexStore,
        directory: str,
        commits: IndexCommits,
        states: LedgerStates,
        chance: Chance,
    ) -> None:
        self._disk = disk
        self._index = index
        self._directory = directory
        self._commits = commits
        self._states = states
        self._chance = chance

    async def restore_limbo(self) -> None:
        """Load the limbo of the previous process at a start. DamagedError."""
        self._states.set_limbo(await load_limbo(self._disk, self._index, self._directory, self._commits))

    async def enter_limbo(self, bounds: Sequence[LedgerId]) -> None:
        """Enter limbo: ledgers at or below `bounds`, per id space, may have lost entries."""
        self._states.set_limbo(self._states.limbo.entered(bounds))
        await store_limbo(self._disk, self._directory, self._commits, self._states.limbo)

    async def end_limbo_of_all(self) -> None:
        """End the limbo of all ledgers, except of those with `contents_lost`."""
        if self._states.limbo.active:
            ended = self._states.limbo.ended()
            await store_limbo(self._disk, self._directory, self._commits, ended)
            self._states.set_limbo(ended)

    async def end_limbo(self, ledger: LedgerId, load: LoadLedger) -> None:
        """End the limbo of one ledger. NoSuchLedgerError if it is not held, as it then has no state to record that."""
        info = await self._held(ledger, load)
        if info.limbo:
            self._states.end_limbo(info)
            await self._commits.commit([(state_key(ledger), encode_state(info))])

    async def adopt_key(self, ledger: LedgerId, master_key: bytes, load: LoadLedger) -> None:
        """Set the key of a ledger that lost its own. Changes nothing if the key is known. NoSuchLedgerError."""
        info = await self._held(ledger, load)
        if info.key_unknown:
            self.restore_key(info, master_key)
            await self._commits.commit([(state_key(ledger), encode_state(info))])

    def create_without_key(self, ledger: LedgerId) -> LedgerInfo:
        """Create a ledger whose key was lost, with a key that no client can know."""
        info = self._states.create(ledger, self._chance.token(UNKNOWN_KEY_BYTES))
        info.key_unknown = True
        return info

    def restore_key(self, info: LedgerInfo, master_key: bytes) -> None:
        """Set the key in memory, until the next flush or commit of the state."""
        info.master_key, info.key_unknown = bytes(master_key), False
        self._states.mark_dirty(info)

    async def ledgers_without_key(self) -> list[LedgerId]:
        """Return the ledgers whose key was lost, ascending. DamagedError."""
        found: set[LedgerId] = set()
        async for key, value in self._index.scan(STATES_START, STATES_END):
            info = decode_state(ledger_of_state_key(key), value)
            info = self._states.get(info.ledger_id) or info
            if info.key_unknown and not info.deleted:
                found.add(info.ledger_id)
        found |= {info.ledger_id for info in self._states.dirty_ledgers() if info.key_unknown and not info.deleted}
        return sorted(found)

    async def _held(self, ledger: LedgerId, load: LoadLedger) -> LedgerInfo:
        info = await load(ledger)
        if info is None or info.deleted:
            raise NoSuchLedgerError(f"ledger {ledger} is not held here")
        return info
