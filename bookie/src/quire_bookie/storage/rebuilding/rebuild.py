"""Rebuilds the index from the entry logs. Reads the logs and fills a new, empty index; changes nothing else.

Owns the rules of what a log proves. Every intact record up to the last footer of a log is indexed, newer ones replacing
older ones by their ages (`log_ages`, `rebuilt_blocks`), and so are the states of ledgers: keys, fences, explicit LACs,
tombstones, limbo. After damage:

* records that a log's own maps count and the walk did not find are *lost*: their blocks are marked, so that a miss in
  them is EIO and never *no such entry*; a ledger that lost a record may have lost its fence, so it is fenced;
* a ledger without any state record left is fenced, with a key that no client can know, until the metadata supplies the
  real one (`LedgerStorage.adopt_key`);
* the content of a log that is missing, or whose maps are damaged as well, is unknown: without `accept_limbo` the
  rebuild is refused; with it, every ledger that may have had entries there is in limbo.

The proof beside the logs names the logs that must exist and their durable bytes. A rebuild that was interrupted at any
point is run again with a new empty index.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from typing import Final, NamedTuple

from quire_bookie.dataclass import dataclass
from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, StartupError
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.formats.block_index import merge_block
from quire_bookie.storage.formats.index_keys import (
    AGES_KEY,
    BLOCK_SHIFT,
    LIMBO_KEY,
    STORE_KEY,
    block_key,
    ledger_of_block_key,
    log_key,
    state_key,
)
from quire_bookie.storage.formats.log_ages import UNKNOWN_AGE, AgeRun, AgeTable, commit_of_age
from quire_bookie.storage.formats.log_catalog import (
    LogState,
    Proof,
    StoreState,
    decode_proof,
    encode_age_floor,
    encode_log_state,
    encode_store_state,
)
from quire_bookie.storage.formats.log_format import FILE_LEDGER, FOOTER_ENTRY, MAP_ENTRY, STATE_ENTRY
from quire_bookie.storage.index.index_commits import LOG_SUFFIX, PROOF_NAME
from quire_bookie.storage.ledgers.ledger_states import (
    UNKNOWN_KEY_BYTES,
    LedgerInfo,
    decode_state,
    encode_state,
    merge_states,
)
from quire_bookie.storage.ledgers.limbo import LONG_IDS_START, NO_LEDGER, Limbo, encode_limbo, read_limbo_file
from quire_bookie.storage.logs.log_walk import LedgerLoss, LogAccount, LogWalk, Piece, WalkedLog, WalkedRecord, open_log
from quire_bookie.storage.rebuilding.rebuilt_blocks import BLOCKS_PER_COMMIT, Rank, RebuiltBlocks

LOST_BLOCKS_MAX: Final = 65_536
"""A ledger that lost entries in a wider range of blocks is in limbo on its own: marking each block costs too much."""
STATES_PER_COMMIT: Final = 4096
HIDDEN_FLUSHES_MAX: Final = 1 << 40
"""More flushes than there can have been after the newest one that is still found in damaged logs."""

Progress = Callable[[int, int], None]
"""Called with the bytes walked so far and all bytes."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Bytes of a log without an intact record, or an unusable log (`end` = `offset`)."""

    path: str
    offset: int
    end: int
    what: str


@dataclass(slots=True)
class RebuildReport:
    """The result of a rebuild, with everything that could not be proved."""

    logs: int = 0
    bytes_read: int = 0
    entries: int = 0
    ledgers: int = 0
    deleted_ledgers: int = 0
    damage: list[LogDamage] = field(default_factory=list)
    losses: list[tuple[LedgerId, EntryId, EntryId, int]] = field(default_factory=list)
    """(ledger, first, last, entries): this number of entries between the ids is lost."""
    fenced: list[LedgerId] = field(default_factory=list)
    """Ledgers whose state was not provable."""
    without_key: list[LedgerId] = field(default_factory=list)
    unknown_logs: list[str] = field(default_factory=list)
    """Logs whose content is unknown; with any, the bookie is in limbo."""
    limbo: bool = False
    proof_lost: bool = False
    """Whether the proof beside the logs is missing or damaged: see `remove_lost_proof`."""


async def rebuild_index(
    disk: Disk,
    index: IndexStore,
    directories: Sequence[str],
    home: str,
    *,
    chance: Chance,
    accept_limbo: bool = False,
    limbo_bounds: Sequence[LedgerId] = (),
    progress: Progress | None = None,
) -> RebuildReport:
    """Fill the empty `index` from the logs in `directories`, which the caller has locked; the proof is in `home`.

    StartupError: the logs do not prove their content and `accept_limbo` is not set, or they are of several bookies.
    `limbo_bounds`: highest ledger ids of the cluster, required if the proof is missing. DamagedError, OSError.
    """
    rebuild = _Rebuild(disk, index, chance)
    await rebuild.find_logs(directories, home, limbo_bounds, accept_limbo)
    await rebuild.walk_all(progress)
    await rebuild.finish(home, accept_limbo, limbo_bounds)
    return rebuild.report


async def remove_lost_proof(disk: Disk, home: str, report: RebuildReport) -> None:
    """Remove a damaged proof, which would make a start refuse the rebuilt index. The next start writes a new one."""
    path = f"{home}/{PROOF_NAME}"
    if report.proof_lost and await disk.exists(path):
        await disk.remove(path)
        await disk.sync_dir(home)


class _Rebuild:
    def __init__(self, disk: Disk, index: IndexStore, chance: Chance) -> None:
        self._disk = disk
        self._index = index
        self._chance = chance
        self.report = RebuildReport()
        self._proof: Proof | None = None
        self._paths: dict[int, str] = {}
        self._named: set[int] = set()
        self._durable: dict[int, int] = {}
        self._uuid: bytes | None = None
        self._log_states: list[LogState] = []
        self._states: dict[LedgerId, _KnownState] = {}
        self._blocks = RebuiltBlocks(index)
        # Each with an age at or above that of the lost records: a newer tombstone makes the loss irrelevant.
        self._unproven: dict[LedgerId, int] = {}
        self._contents_lost: dict[LedgerId, int] = {}
        self._lost_blocks: dict[bytes, int] = {}
        self._deleted_at: dict[LedgerId, Rank] = {}
        self._newest_flush = 0

    # ---- the logs that exist, and that must exist
    async def find_logs(
        self, directories: Sequence[str], home: str, limbo_bounds: Sequence[LedgerId], accept_limbo: bool
    ) -> None:
        """List the folders and read the proof. StartupError."""
        for directory in directories:
            for name in await self._disk.list_dir(directory):
                if not name.endswith(LOG_SUFFIX):
                    continue
                log, path = _log_of(name, directory), f"{directory}/{name}"
                if log in self._paths:
                    raise StartupError(f"{path} and {self._paths[log]} are the same entry log; move one of them away")
                self._paths[log] = path
        path = f"{home}/{PROOF_NAME}"
        try:
            if not await self._disk.exists(path):
                raise DamagedError(path, 0, "it is missing")
            self._proof = decode_proof(await self._disk.read_file(path), path)
        except DamagedError as error:
            if not (accept_limbo and limbo_bounds):
                raise StartupError(
                    f"{error}; without it the set of entry logs is unknown. To continue in limbo, pass --accept-limbo "
                    "and the highest ledger id of the cluster as --up-to-ledger"
                ) from error
            self._note_unknown(path, str(error))
            self.report.proof_lost = True
            return
        self._uuid = self._proof.storage_uuid
        if self._proof.runs is None:
            self._note_unknown(path, "its format version does not name the entry logs")
            return
        self._named = self._proof.logs()
        self._durable = dict(self._proof.unsealed or ())
        for log in sorted(self._named - self._paths.keys()):
            self._note_unknown(f"{directories[0]}/{log:016x}{LOG_SUFFIX}", "the entry log is missing")
            self._log_states.append(LogState(log, bytes(16), 0, 0, sealed=True))

    def _note_unknown(self, path: str, what: str) -> None:
        self.report.unknown_logs.append(path)
        self.report.damage.append(LogDamage(path, 0, 0, what))

    # ---- walking
    async def walk_all(self, progress: Progress | None) -> None:
        """Walk every log, oldest first."""
        sizes: dict[int, int] = {}
        for log, path in self._paths.items():
            file = await self._disk.open_read_only(path)
            sizes[log] = await file.size()
            await file.close()
        total = sum(sizes.values())
        done = 0
        for log, path in sorted(self._paths.items()):
            try:
                walked = await open_log(self._disk, path)
            except DamagedError as error:
                if log in self._named or self._proof is None or self._proof.runs is None:
                    self._note_unknown(path, str(error))
                    self._log_states.append(LogState(log, bytes(16), sizes[log], 0, sealed=True))
                continue  # otherwise no commit names it: it was created just before a crash
            try:
                await self._walk(log, walked, progress, done, total)
            finally:
                await walked.file.close()
            done += sizes[log]
            self.report.logs += 1
            self.report.bytes_read += sizes[log]
        await self._blocks.commit()
        self._note_undecided()
        self.report.entries = self._blocks.entries

    async def _walk(self, log: int, walked: WalkedLog, progress: Progress | None, done: int, total: int) -> None:
        self._check_owner(log, walked)
        walk, account, ages = LogWalk(walked), LogAccount(walked), self._blocks.begin_log(log)
        flush: list[_Found] = []
        map_offset = 0
        async for piece in walk.pieces():
            account.add(piece)
            for record in piece.records:
                if record.ledger != FILE_LEDGER:
                    flush.append(_found(record))
                elif record.entry in (FOOTER_ENTRY, MAP_ENTRY):
                    map_offset = record.offset if record.entry == MAP_ENTRY else 0
                    if flush:
                        ages.add_flush(flush[0].offset, _ages_in(record, walked.path))
                    self._take(log, flush)
                    flush = []
            self._note_gaps(walked.path, piece)
            if self._blocks.is_full:
                await self._blocks.commit()
            if progress is not None:
                progress(done + walk.offset, total)
            await asyncio.sleep(0)
        # After the last footer: part of a sealed log, or of the durable bytes; otherwise an interrupted flush.
        sealed = walked.sealed or walk.reached_map or (log in self._named and log not in self._durable)
        durable = walked.size_bytes if sealed else max(walk.flush_end, self._durable.get(log, 0))
        if flush:
            ages.add(AgeRun(flush[0].offset, UNKNOWN_AGE))
        self._take(log, [found for found in flush if found.offset < durable])
        self._newest_flush = max(self._newest_flush, commit_of_age(ages.newest_known))
        if not sealed:
            self._drop_torn_tail(walked.path, durable)
        self._note_losses(log, walked, account, sealed, ages.newest)
        pointer = (map_offset or walked.map_offset or 0) if sealed else walk.footer
        self._log_states.append(LogState(log, walked.header.uuid, durable, pointer, sealed))

    def _check_owner(self, log: int, walked: WalkedLog) -> None:
        self._uuid = self._uuid or walked.header.storage_uuid
        if walked.header.storage_uuid != self._uuid:
            raise StartupError(f"{walked.path} belongs to another bookie's storage; move it away")
        if walked.header.log != log:
            raise StartupError(f"{walked.path} is another entry log; rename it to {walked.header.log:016x}{LOG_SUFFIX}")

    def _take(self, log: int, flush: Iterable["_Found"]) -> None:
        """Index the records of one flush."""
        take, rank = self._blocks.take, self._blocks.rank
        # Records that no commit names may be torn; the journal, or the log from which they were copied, still has them.
        # Without an age they must not make the valid copy undecided.
        unproven_from = self._proven_bytes(log)
        for ledger, entry, offset, size, state in flush:
            if offset >= unproven_from and rank(log, offset).age == UNKNOWN_AGE:
                continue
            if entry == STATE_ENTRY:
                self._take_state(ledger, state, rank(log, offset))
            else:
                take(log, ledger, entry, offset, size)

    def _proven_bytes(self, log: int) -> int | float:
        """Return the durable bytes of a log according to the proof; infinity if it does not name them."""
        if self._proof is None or self._proof.runs is None:
            return math.inf
        return self._durable.get(log, math.inf if log in self._named else 0)

    def _take_state(self, ledger: LedgerId, value: bytes, rank: Rank) -> None:
        """Merge a record of a state: the newer record wins, in any log, and one older than a tombstone is ignored.

        The tombstone of a superfluous copy never replaces a later revival of the ledger, and drops no entries before
        all logs are read; a ledger that is newer than a tombstone is fenced, as the tombstone was.
        """
        known = self._states.get(ledger)
        if known is not None and rank.age == UNKNOWN_AGE:
            rank = max(known.newest, rank._replace(age=known.newest.age))  # ordered as found
        try:
            found = decode_state(ledger, value)
        except DamagedError:
            self._unproven[ledger] = max(rank.age, self._unproven.get(ledger, 0))  # valid, but of a later version
            return
        present = None if known is None else decode_state(ledger, known.value)
        if found.deleted:
            self._take_tombstone(found, value, rank, known, present)
        elif rank < self._deleted_at.get(ledger, rank):
            return
        elif known is None or present is None:
            self._states[ledger] = _KnownState(rank, rank, value)
        elif present.deleted:
            found.fenced = True
            self._states[ledger] = _KnownState(rank, rank, encode_state(found))
        else:
            older, newer = (found, present) if rank < known.newest else (present, found)
            merged = merge_states(older, newer)
            self._states[ledger] = _KnownState(min(rank, known.oldest), max(rank, known.newest), merged)

    def _take_tombstone(
        self, found: LedgerInfo, value: bytes, rank: Rank, known: "_KnownState | None", present: LedgerInfo | None
    ) -> None:
        ledger = found.ledger_id
        if present is not None and not present.deleted and present.revivals > found.revivals:
            return
        self._deleted_at[ledger] = max(rank, self._deleted_at.get(ledger, rank))
        if not found.superfluous:
            self._blocks.drop(ledger, rank)
        if known is None or present is None or rank > known.newest:
            self._states[ledger] = _KnownState(rank, rank, value)
        elif not present.deleted:
            present.fenced = True
            if known.oldest < rank:  # merged with older records: only the key certainly belongs to the revived ledger
                present.explicit_lac, present.explicit_lac_entry = None, NO_ENTRY
            self._states[ledger] = _KnownState(known.newest, known.newest, encode_state(present))

    def _note_gaps(self, path: str, piece: Piece) -> None:
        for gap in piece.gaps:
            what = "no intact record"
            if gap.suspect is not None:
                what = f"the record of ledger {gap.suspect[0]} entry {gap.suspect[1]} is damaged"
            self.report.damage.append(LogDamage(path, gap.offset, gap.end, what))

    def _drop_torn_tail(self, path: str, durable: int) -> None:
        """Drop damage in an interrupted flush from the report: the journal has its entries."""
        damage = self.report.damage
        while damage and damage[-1].path == path and damage[-1].offset >= durable:
            damage.pop()

    def _note_losses(self, log: int, walked: WalkedLog, account: LogAccount, sealed: bool, newest_age: int) -> None:
        """Record the losses in the gaps of a log. Lost records are at most as new as its newest remaining flush."""
        if log not in self._named and self._proof is not None and self._proof.runs is not None:
            return  # no commit up to the proof names it: the journal still has all its entries
        expected = account.expected(sealed=sealed, durable_bytes=self._durable.get(log, 0))
        if expected is None:
            self._note_unknown(
                walked.path, "its content is unknown: its own maps are damaged as well, or its end is missing"
            )
            return
        for ledger, loss in sorted(account.losses(expected).items()):
            self._unproven[ledger] = max(newest_age, self._unproven.get(ledger, 0))
            if loss.entries:
                self._lose(ledger, loss, newest_age)

    def _note_undecided(self) -> None:
        """Report entries with two copies of which the newer one is unknown."""
        for ledger, entry in self._blocks.undecided:
            self.report.losses.append((ledger, entry, entry, 1))

    def _lose(self, ledger: LedgerId, loss: LedgerLoss, newest_age: int) -> None:
        """Mark the blocks of lost entries, so that a miss in them does not prove absence."""
        self.report.losses.append((ledger, loss.first, loss.last, loss.entries))
        first, last = loss.first >> BLOCK_SHIFT, loss.last >> BLOCK_SHIFT
        if loss.suspects:
            blocks: Iterable[int] = {entry >> BLOCK_SHIFT for entry in loss.suspects}
        elif last - first < LOST_BLOCKS_MAX:
            blocks = range(first, last + 1)
        else:
            self._contents_lost[ledger] = max(newest_age, self._contents_lost.get(ledger, 0))
            return
        for block in blocks:
            key = block_key(ledger, block)
            self._lost_blocks[key] = max(newest_age, self._lost_blocks.get(key, 0))

    def _settle_tombstones(self) -> None:
        """Drop losses of ledgers that were deleted later."""
        gone = self._blocks.is_behind_tombstone
        self._unproven = {ledger: age for ledger, age in self._unproven.items() if not gone(ledger, age)}
        self._contents_lost = {ledger: age for ledger, age in self._contents_lost.items() if not gone(ledger, age)}
        self._lost_blocks = {
            key: age for key, age in self._lost_blocks.items() if not gone(ledger_of_block_key(key), age)
        }

    # ---- states, tombstones, losses, and the store's own keys
    async def finish(self, home: str, accept_limbo: bool, limbo_bounds: Sequence[LedgerId]) -> None:
        """Write everything else, and one synced commit at the end. StartupError if content is unknown."""
        self._settle_tombstones()
        limbo = await self._limbo(home, accept_limbo, limbo_bounds)
        await self._mark_lost()
        await self._commit_states()
        # Later flushes must be newer than every flush that left records. Without a proof the commits are numbered from
        # 1 again, as in a new index, and damage hides ages: later ages then start at a floor, far enough above the
        # known ones that no record found later is newer.
        number = 1 if self._proof is None else max(self._proof.number, self._newest_flush) + 1
        next_log = max((*self._paths, *self._named, 0)) + 1
        puts = [(log_key(state.log), encode_log_state(state)) for state in self._log_states]
        if limbo.number:
            puts.append((LIMBO_KEY, encode_limbo(limbo)))
        if self._proof is None or self.report.damage:
            puts.append((AGES_KEY, encode_age_floor(max(0, self._newest_flush + HIDDEN_FLUSHES_MAX - number))))
        uuid = self._uuid or self._chance.token(16)
        puts.append((STORE_KEY, encode_store_state(StoreState(uuid, number, next_log))))
        await self._index.commit(puts, sync=True)
        self.report.limbo = limbo.active

    async def _limbo(self, home: str, accept_limbo: bool, bounds: Sequence[LedgerId]) -> Limbo:
        report = self.report
        try:
            limbo = await read_limbo_file(self._disk, home) or Limbo()
        except DamagedError as error:
            self._note_unknown(error.path, str(error))
            limbo = Limbo()
        if not report.unknown_logs:
            return limbo
        if not accept_limbo:
            raise StartupError(
                f"the content of {', '.join(report.unknown_logs[:5])} is unknown: {report.damage[0].what}. Restore the "
                "file, or rebuild with --accept-limbo: every ledger that may have been there is then in limbo until "
                "it is restored from other bookies"
            )
        proof = self._proof or Proof(b"", 0)
        seen = self._held()
        short = max((each for each in seen if each < LONG_IDS_START), default=NO_LEDGER)
        # The record of limbo may be lost: the end of a ledger's earlier limbo must not count as the end of this one.
        states = (decode_state(ledger, state.value) for ledger, state in self._states.items())
        ended = max((state.limbo_ended for state in states), default=0)
        limbo = replace(limbo, generation=max(limbo.generation, ended))
        return limbo.entered([*bounds, proof.short_top, proof.long_top, short, max(seen, default=NO_LEDGER)])

    async def _mark_lost(self) -> None:
        keys = sorted(self._lost_blocks)
        for start in range(0, len(keys), BLOCKS_PER_COMMIT):
            part = keys[start : start + BLOCKS_PER_COMMIT]
            old = await self._index.get_many(part)
            puts = [(key, merge_block(key, was, (), lost=True)) for key, was in zip(part, old, strict=True)]
            await self._index.commit(puts, sync=False)

    async def _commit_states(self) -> None:
        report, puts = self.report, list[tuple[bytes, bytes]]()
        for ledger in sorted(self._held() | self._unproven.keys()):
            known = self._states.get(ledger)
            value = None if known is None else known.value
            if value is None or ledger in self._unproven or ledger in self._contents_lost:
                value = self._fenced_state(ledger, value)
            info = decode_state(ledger, value)
            if info.deleted:
                report.deleted_ledgers += 1
                await self._blocks.drop_all(ledger)  # copies of its records that were found after its tombstone
            else:
                report.ledgers += 1
            puts.append((state_key(ledger), value))
            if len(puts) >= STATES_PER_COMMIT:
                await self._index.commit(puts, sync=False)
                puts = []
        await self._index.commit(puts, sync=False)

    def _held(self) -> set[LedgerId]:
        """Return every ledger with a state, an entry or a loss."""
        lost = {ledger_of_block_key(key) for key in self._lost_blocks}
        return self._states.keys() | self._blocks.ledgers | lost | self._contents_lost.keys()

    def _fenced_state(self, ledger: LedgerId, value: bytes | None) -> bytes:
        """Return the known state of a ledger that lost a record, fenced, as the lost record may have been its fence."""
        if value is None:
            info = LedgerInfo(ledger, self._chance.token(UNKNOWN_KEY_BYTES))
            info.key_unknown = True
            self.report.without_key.append(ledger)
        else:
            info = decode_state(ledger, value)
        if info.deleted and info.superfluous:
            # The lost record may have been that of its revival, and others those of its entries since then.
            info.deleted = info.superfluous = False
            self._contents_lost[ledger] = UNKNOWN_AGE
        if not info.deleted:
            info.fenced = True
            info.contents_lost = info.contents_lost or ledger in self._contents_lost
            self.report.fenced.append(ledger)
        return encode_state(info)


class _KnownState(NamedTuple):
    """A state, merged from records of these ranks."""

    oldest: Rank
    newest: Rank
    value: bytes


class _Found(NamedTuple):
    """A record without its body, which is kept only for a state."""

    ledger: LedgerId
    entry: EntryId
    offset: int
    size: int
    state: bytes


def _found(record: WalkedRecord) -> _Found:
    ledger, entry, offset, body = record
    return _Found(ledger, entry, offset, len(body), bytes(body) if entry == STATE_ENTRY else b"")


def _ages_in(record: WalkedRecord, path: str) -> AgeTable | None:
    """Return the ages in a footer or map; none if the body is of a later version."""
    try:
        log_format.decode_map(record.body, path, record.offset)
        return log_format.ages_of_map(record.body, path, record.offset)
    except DamagedError:
        return AgeTable((), 0)


def _log_of(name: str, directory: str) -> int:
    try:
        return int(name[: -len(LOG_SUFFIX)], 16)
    except ValueError as error:
        raise StartupError(
            f"{directory}/{name} is not an entry log: its name is not a hexadecimal number; move it away"
        ) from error
