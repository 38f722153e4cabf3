"""Commits to the index, numbered, with a proof of the last number beside the entry logs.

Owns the order commit -> proof, and the refusal to start on an index that lost commits: an absent key is a claim. Every
write of the storage room goes through here; reads go to the index store directly.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, DiskFullError, StartupError
from quire_bookie.storage.index_keys import STORE_KEY
from quire_bookie.storage.log_catalog import (
    StoreState,
    decode_proof,
    decode_store_state,
    encode_proof,
    encode_store_state,
)

PROOF_NAME = "index.proof"
LOG_SUFFIX = ".qlog"

_log = logging.getLogger("quire.storage.index")


class IndexCommits:
    """Numbered commits. One at a time: the caller holds the storage's write lock."""

    def __init__(self, disk: Disk, index: IndexStore, directory: str, state: StoreState) -> None:
        self._disk = disk
        self._index = index
        self._proof = f"{directory}/{PROOF_NAME}"
        self._state = state
        self.is_new = False
        """Index and folder were empty: `open` stamped them."""

    @classmethod
    async def open(cls, disk: Disk, index: IndexStore, directory: str, chance: Chance) -> "IndexCommits":
        """Check index and folder against each other, or stamp both when they are new.

        Raises StartupError when they do not belong together, DamagedError when the index lost commits.
        """
        names = await disk.list_dir(directory)
        logs = [name for name in names if name.endswith(LOG_SUFFIX)]
        value = await index.get(STORE_KEY)
        if value is None:
            if logs or PROOF_NAME in names:
                raise StartupError(
                    f"{directory} holds {len(logs)} entry logs, but the index is empty: put the index back, or move "
                    "the folder away and let the ledgers be replicated anew"
                )
            commits = cls(disk, index, directory, StoreState(chance.token(16), 0, 1))
            await commits._write([], [], commits._state)
            await disk.replace_file(commits._proof, encode_proof(commits._state))
            commits.is_new = True
            return commits
        state = decode_store_state(value)
        commits = cls(disk, index, directory, state)
        if PROOF_NAME in names:
            uuid, number = decode_proof(await disk.read_file(commits._proof), commits._proof)
            if uuid != state.storage_uuid:
                raise StartupError(f"{directory} and its index belong to different bookies; nothing was changed")
            if number > state.number:
                raise DamagedError(
                    commits._proof, 0, f"the index is at commit {state.number}, but {number} was durable"
                )
        elif state.number > 1:
            raise StartupError(f"{commits._proof} is missing: this folder does not belong to the index, or lost files")
        else:
            await disk.replace_file(commits._proof, encode_proof(state))
        return commits

    @property
    def storage_uuid(self) -> bytes:
        """16 bytes that name this storage."""
        return self._state.storage_uuid

    @property
    def next_log(self) -> int:
        """Id of the next entry log; ids below were given out."""
        return self._state.next_log

    async def commit(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), *, next_log: int | None = None
    ) -> None:
        """Durable when it returns. DiskFullError: nothing was changed."""
        await self._write(puts, deletes, replace(self._state, next_log=next_log or self._state.next_log))
        try:
            await self._disk.replace_file(self._proof, encode_proof(self._state))
        except DiskFullError:
            # The commit stands. A proof that lags by one commit is weaker, never wrong.
            _log.warning("no space to prove index commit %d in %s", self._state.number, self._proof)

    async def _write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes], state: StoreState) -> None:
        state = replace(state, number=state.number + 1)
        await self._index.commit([*puts, (STORE_KEY, encode_store_state(state))], deletes, sync=True)
        self._state = state
