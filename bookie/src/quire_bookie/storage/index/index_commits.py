"""Numbered commits to the index, with a proof of the last number beside the entry logs.

Owns the order commit -> proof, and the refusal to start on an index that lost commits, in which absent keys would prove
nothing. Every write of the storage goes through here; reads go to the index store directly.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, DiskFullError, StartupError
from quire_bookie.model import LedgerId
from quire_bookie.storage.formats.index_keys import (
    AGES_KEY,
    LOGS_END,
    LOGS_START,
    STATES_START,
    STORE_KEY,
    ledger_of_state_key,
    log_of_key,
    state_key,
)
from quire_bookie.storage.formats.log_ages import age_of_flush
from quire_bookie.storage.formats.log_catalog import (
    Proof,
    StoreState,
    decode_age_floor,
    decode_log_state,
    decode_proof,
    decode_store_state,
    encode_proof,
    encode_store_state,
    runs_of,
)

PROOF_NAME = "index.proof"
LOG_SUFFIX = ".qlog"
REBUILD_REMEDY = "stop the bookie and run `quire bookie rebuild-index`"
PROOF_REMEDY = f"put the file back, or {REBUILD_REMEDY} with --accept-limbo"
_LONG_IDS_START = 1 << 31
_LEDGERS_END = (1 << 63) - 1

_log = logging.getLogger("quire.storage.index")


async def read_proof(disk: Disk, path: str) -> Proof:
    """Read the proof file. DamagedError names the remedy."""
    try:
        return decode_proof(await disk.read_file(path), path)
    except DamagedError as error:
        what = str(error).rpartition(": damaged at offset 0: ")[2]
        raise DamagedError(path, 0, f"{what}; {PROOF_REMEDY}") from error


class IndexCommits:
    """Writes numbered commits, one at a time: the caller holds the storage's write lock."""

    def __init__(self, disk: Disk, index: IndexStore, directory: str, state: StoreState) -> None:
        self._disk = disk
        self._index = index
        self._proof = f"{directory}/{PROOF_NAME}"
        self._state = state
        self._durable_bytes: dict[int, int | None] = {}  # of each log; None: sealed
        self._runs: tuple[tuple[int, int], ...] = ()
        self._tops = [LedgerId(-1), LedgerId(-1)]
        self._age_floor = 0
        self.is_new = False
        """Whether index and folder were empty, so that `open` initialised them."""

    @classmethod
    async def open(cls, disk: Disk, index: IndexStore, directory: str, chance: Chance) -> "IndexCommits":
        """Check index and folder against each other, or initialise both if they are new.

        Raises StartupError if they do not belong together, DamagedError if the index lost commits.
        """
        names = await disk.list_dir(directory)
        logs = [name for name in names if name.endswith(LOG_SUFFIX)]
        value = await index.get(STORE_KEY)
        if value is None:
            if logs or PROOF_NAME in names:
                raise StartupError(
                    f"{directory} holds {len(logs)} entry logs, but its index is missing or empty: put it back, or "
                    f"{REBUILD_REMEDY}"
                )
            commits = cls(disk, index, directory, StoreState(chance.token(16), 0, 1))
            await commits._write([], [], commits._state)
            await commits._write_proof()
            commits.is_new = True
            return commits
        state = decode_store_state(value)
        commits = cls(disk, index, directory, state)
        try:
            commits._age_floor = decode_age_floor(await index.get(AGES_KEY))
            await commits._load_catalog()
        except DamagedError as error:
            raise DamagedError(error.path, error.offset, f"{error}; {REBUILD_REMEDY}") from error
        if PROOF_NAME in names:
            proof = await read_proof(disk, commits._proof)
            if proof.storage_uuid != state.storage_uuid:
                raise StartupError(f"{commits._proof} and the index belong to different bookies; {PROOF_REMEDY}")
            # The index has no trace of ledgers whose tombstones have expired; the proof has.
            commits._tops = [max(*each) for each in zip(commits._tops, (proof.short_top, proof.long_top), strict=True)]
            if proof.number > state.number:
                raise DamagedError(
                    commits._proof,
                    0,
                    f"the index is at commit {state.number}, but {proof.number} was durable; {REBUILD_REMEDY}",
                )
        elif state.number > 1:
            raise StartupError(
                f"{commits._proof} is missing: this folder does not belong to the index, or lost files; {PROOF_REMEDY}"
            )
        else:
            await commits._write_proof()
        return commits

    @property
    def storage_uuid(self) -> bytes:
        """The 16 bytes that identify this storage."""
        return self._state.storage_uuid

    @property
    def highest_ledgers(self) -> list[LedgerId]:
        """The highest ledger of each id space ever named by a commit, according to index and proof; -1: none."""
        return list(self._tops)

    def is_above_all(self, ledger: LedgerId) -> bool:
        """Whether no commit ever named this ledger or a higher one of its id space: the index does not have it."""
        return ledger > self._tops[ledger >= _LONG_IDS_START]

    @property
    def next_log(self) -> int:
        """Id of the next entry log; lower ids are used."""
        return self._state.next_log

    @property
    def next_age(self) -> int:
        """The age of a flush that will be the next commit: higher than all earlier ages."""
        return age_of_flush(self._age_floor + self._state.number + 1)

    async def commit(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes] = (),
        *,
        blocks: Sequence[tuple[bytes, bytes]] = (),
        next_log: int | None = None,
        proves: bool = True,
    ) -> None:
        """Commit durably. DiskFullError: nothing changed. `blocks`: more puts, of blocks of entry positions only.

        Without `proves`, the proof follows with the next commit: for a commit of entries that the journal keeps until
        a later one, whose loss need not be noticed.
        """
        state = replace(self._state, next_log=next_log or self._state.next_log)
        await self._write([*blocks, *puts], deletes, state)
        self._note(puts, deletes)
        if not proves:
            return
        try:
            await self._write_proof()
        except DiskFullError:
            # The commit is durable. A proof that lags by one commit is weaker, never wrong.
            _log.warning("no space to prove index commit %d in %s", self._state.number, self._proof)

    async def _write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes], state: StoreState) -> None:
        state = replace(state, number=state.number + 1)
        assert state.next_log >= self._state.next_log, "the id of a log is never used twice"
        await self._index.commit([*puts, (STORE_KEY, encode_store_state(state))], deletes, sync=True)
        assert state.number == self._state.number + 1, "commits are made one at a time, in order"
        self._state = state

    async def _write_proof(self) -> None:
        unsealed = tuple((log, size) for log, size in sorted(self._durable_bytes.items()) if size is not None)
        short, long = self._tops
        proof = Proof(self._state.storage_uuid, self._state.number, short, long, self._runs, unsealed)
        await self._disk.replace_file(self._proof, encode_proof(proof))

    async def _load_catalog(self) -> None:
        """Load the parts of the index that the proof repeats. DamagedError."""
        async for key, value in self._index.scan(LOGS_START, LOGS_END):
            self._note([(key, value)], ())
        for top in (_LONG_IDS_START - 1, _LEDGERS_END):
            pair = await self._index.last_at_or_below(state_key(LedgerId(top)), state_key(LedgerId(0)))
            if pair is not None:
                self._note([pair], ())
        self._runs = runs_of(self._durable_bytes)

    def _note(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        """Track the logs and ledger ids that a commit names, apart from its blocks."""
        known = len(self._durable_bytes), bool(deletes)
        for key, value in puts:
            kind = key[:1]
            if kind == STATES_START:
                ledger = ledger_of_state_key(key)
                space = ledger >= _LONG_IDS_START
                self._tops[space] = max(self._tops[space], ledger)
            elif kind == LOGS_START:
                state = decode_log_state(log_of_key(key), value)
                known_bytes = self._durable_bytes.get(state.log, 0)
                assert known_bytes is not None and known_bytes <= state.durable_bytes, "a log only grows until its seal"
                self._durable_bytes[state.log] = None if state.sealed else state.durable_bytes
        for key in deletes:
            if key[:1] == LOGS_START:
                self._durable_bytes.pop(log_of_key(key), None)
        if known != (len(self._durable_bytes), False):
            self._runs = runs_of(self._durable_bytes)
