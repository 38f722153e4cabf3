"""The index anew, from the entry logs. Reads logs, writes a new and empty index; changes nothing else.

Owns the rule of what a log proves. Every intact record up to the last footer of a log goes in, newer ones winning over
older ones by their ages (`log_ages`, `rebuilt_blocks`), and so do the states of ledgers: keys, fences, explicit LACs,
tombstones, limbo. What is damaged:

* what a log's own maps count and the walk did not find is *lost*: the blocks it lay in say so, so that a miss there is
  EIO and never *no such entry*; a ledger that lost a record may have lost its fence, so it comes back fenced;
* a ledger of which no state record is left comes back fenced, with a key that no client can know, until the metadata
  gives its real one (`LedgerStorage.adopt_key`);
* a log that is missing, or whose maps are damaged as well, hides what it held: without `accept_limbo` the rebuild is
  refused; with it, every ledger that may have had entries there comes up in limbo.

The proof beside the logs says which logs there must be and how much of them was durable. A rebuild that was stopped at
any point is run again with another empty index.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

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
"""A ledger that lost something in a wider range than this is in limbo by itself: marking each block costs too much."""
STATES_PER_COMMIT: Final = 4096
HIDDEN_FLUSHES_MAX: Final = 1 << 40
"""More than there can have been since the newest one that damaged logs still show."""

Progress = Callable[[int, int], None]
"""Called with the bytes walked so far and all bytes."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Bytes of a log that hold no intact record, or a log that cannot be used at all (`end` = `offset`)."""

    path: str
    offset: int
    end: int
    what: str


@dataclass(slots=True)
class RebuildReport:
    """What was rebuilt, and what could not be proved."""

    logs: int = 0
    bytes_read: int = 0
    entries: int = 0
    ledgers: int = 0
    deleted_ledgers: int = 0
    damage: list[LogDamage] = field(default_factory=list)
    losses: list[tuple[LedgerId, EntryId, EntryId, int]] = field(default_factory=list)
    """(ledger, first, last, entries): so many entries between these ids are lost."""
    fenced: list[LedgerId] = field(default_factory=list)
    """Ledgers whose state was not provable."""
    without_key: list[LedgerId] = field(default_factory=list)
    unknown_logs: list[str] = field(default_factory=list)
    """Logs that hide what they held; then the bookie comes up in limbo."""
    limbo: bool = False
    proof_lost: bool = False
    """The proof beside the logs is missing or damaged: see `remove_lost_proof`."""


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
    """Fill `index`, which is empty, from the logs in `directories`; the proof lies in `home`. The caller locked them.

    StartupError: the logs do not prove what was held, and `accept_limbo` is not set; or they are of several bookies.
    `limbo_bounds`: highest ledger ids of the cluster, needed where the proof is gone. DamagedError, OSError.
    """
    rebuild = _Rebuild(disk, index, chance)
    await rebuild.find_logs(directories, home, limbo_bounds, accept_limbo)
    await rebuild.walk_all(progress)
    await rebuild.finish(home, accept_limbo, limbo_bounds)
    return rebuild.report


async def remove_lost_proof(disk: Disk, home: str, report: RebuildReport) -> None:
    """Before the rebuilt index takes its place: a damaged proof would refuse it. The next start writes a new one."""
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
        # Each with an age at or above that of what was lost: a tombstone that is newer settles it.
        self._unproven: dict[LedgerId, int] = {}
        self._contents_lost: dict[LedgerId, int] = {}
        self._lost_blocks: dict[bytes, int] = {}
        self._deleted_at: dict[LedgerId, Rank] = {}
        self._newest_flush = 0

    # ---- which logs there are, and must be
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
                    f"{error}; without it nobody knows which entry logs there were. To go on in limbo give "
                    "--accept-limbo and the highest ledger id of the cluster as --up-to-ledger"
                ) from error
            self._hide(path, str(error))
            self.report.proof_lost = True
            return
        self._uuid = self._proof.storage_uuid
        if self._proof.runs is None:
            self._hide(path, "it is of a version that does not name the entry logs")
            return
        self._named = self._proof.logs()
        self._durable = dict(self._proof.unsealed or ())
        for log in sorted(self._named - self._paths.keys()):
            self._hide(f"{directories[0]}/{log:016x}{LOG_SUFFIX}", "the entry log is missing")
            self._log_states.append(LogState(log, bytes(16), 0, 0, sealed=True))

    def _hide(self, path: str, what: str) -> None:
        self.report.unknown_logs.append(path)
        self.report.damage.append(LogDamage(path, 0, 0, what))

    # ---- walking
    async def walk_all(self, progress: Progress | None) -> None:
        """Every log, oldest first."""
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
                    self._hide(path, str(error))
                    self._log_states.append(LogState(log, bytes(16), sizes[log], 0, sealed=True))
                continue  # otherwise no commit names it: a crash left it before its first sync
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
        # Behind the last footer: part of a sealed log, or of what was durable; otherwise a flush that a crash cut off.
        sealed = walked.sealed or walk.reached_map or (log in self._named and log not in self._durable)
        durable = walked.size_bytes if sealed else max(walk.flush_end, self._durable.get(log, 0))
        if flush:
            ages.add(AgeRun(flush[0].offset, UNKNOWN_AGE))
        self._take(log, [found for found in flush if found.offset < durable])
        self._newest_flush = max(self._newest_flush, commit_of_age(ages.newest_known))
        if not sealed:
            self._forget_torn_tail(walked.path, durable)
        self._judge(log, walked, account, sealed, ages.newest)
        pointer = (map_offset or walked.map_offset or 0) if sealed else walk.footer
        self._log_states.append(LogState(log, walked.header.uuid, durable, pointer, sealed))

    def _check_owner(self, log: int, walked: WalkedLog) -> None:
        self._uuid = self._uuid or walked.header.storage_uuid
        if walked.header.storage_uuid != self._uuid:
            raise StartupError(f"{walked.path} belongs to another bookie's storage; move it away")
        if walked.header.log != log:
            raise StartupError(f"{walked.path} is entry log {walked.header.log:016x}; give it its own name back")

    def _take(self, log: int, flush: Iterable["_Found"]) -> None:
        """Index the records of one flush."""
        take, rank = self._blocks.take, self._blocks.rank
        # What no commit names may be torn; the journal, or the log that it was copied from, still has it. Without its
        # age it must not raise a doubt about the copy that counts.
        doubtful_from = self._proven_bytes(log)
        for ledger, entry, offset, size, state in flush:
            if offset >= doubtful_from and rank(log, offset).age == UNKNOWN_AGE:
                continue
            if entry == STATE_ENTRY:
                self._take_state(ledger, state, rank(log, offset))
            else:
                take(log, ledger, entry, offset, size)

    def _proven_bytes(self, log: int) -> int | float:
        """How much of a log the proof says was durable; without end where it does not say."""
        if self._proof is None or self._proof.runs is None:
            return math.inf
        return self._durable.get(log, math.inf if log in self._named else 0)

    def _take_state(self, ledger: LedgerId, value: bytes, rank: Rank) -> None:
        """The newer record of a state wins, wherever it lies, and one of before a tombstone is nothing.

        The tombstone of a superfluous copy never beats a later life of the ledger, and drops nothing before everything
        is read; what lives behind any tombstone is as fenced as the tombstone was.
        """
        known = self._states.get(ledger)
        if known is not None and rank.age == UNKNOWN_AGE:
            rank = max(known.newest, rank._replace(age=known.newest.age))  # in the order in which they were found
        try:
            found = decode_state(ledger, value)
        except DamagedError:
            self._unproven[ledger] = max(rank.age, self._unproven.get(ledger, 0))  # intact, but of a later version
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
            if known.oldest < rank:  # it was merged with what came before: only the key is surely of this life
                present.explicit_lac, present.explicit_lac_entry = None, NO_ENTRY
            self._states[ledger] = _KnownState(known.newest, known.newest, encode_state(present))

    def _note_gaps(self, path: str, piece: Piece) -> None:
        for gap in piece.gaps:
            what = "no intact record"
            if gap.suspect is not None:
                what = f"the record of ledger {gap.suspect[0]} entry {gap.suspect[1]} is damaged"
            self.report.damage.append(LogDamage(path, gap.offset, gap.end, what))

    def _forget_torn_tail(self, path: str, durable: int) -> None:
        """A flush that a crash cut off is no damage: the journal has it."""
        damage = self.report.damage
        while damage and damage[-1].path == path and damage[-1].offset >= durable:
            damage.pop()

    def _judge(self, log: int, walked: WalkedLog, account: LogAccount, sealed: bool, newest_age: int) -> None:
        """What the gaps of a log cost. What was lost is at most as new as the newest flush that is left of the log."""
        if log not in self._named and self._proof is not None and self._proof.runs is not None:
            return  # no commit that the proof knows names it: the journal still has everything in it
        expected = account.expected(sealed=sealed, durable_bytes=self._durable.get(log, 0))
        if expected is None:
            self._hide(
                walked.path, "what it held is not known: its own maps are damaged as well, or its end is missing"
            )
            return
        for ledger, loss in sorted(account.losses(expected).items()):
            self._unproven[ledger] = max(newest_age, self._unproven.get(ledger, 0))
            if loss.entries:
                self._lose(ledger, loss, newest_age)

    def _note_undecided(self) -> None:
        """Entries of which two copies are there, but not which one is newer."""
        for ledger, entry in self._blocks.undecided:
            self.report.losses.append((ledger, entry, entry, 1))

    def _lose(self, ledger: LedgerId, loss: LedgerLoss, newest_age: int) -> None:
        """Mark the blocks of what was lost, so that their misses are not absence."""
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
        """What was lost before a ledger was deleted does not matter any more."""
        gone = self._blocks.is_behind_tombstone
        self._unproven = {ledger: age for ledger, age in self._unproven.items() if not gone(ledger, age)}
        self._contents_lost = {ledger: age for ledger, age in self._contents_lost.items() if not gone(ledger, age)}
        self._lost_blocks = {
            key: age for key, age in self._lost_blocks.items() if not gone(ledger_of_block_key(key), age)
        }

    # ---- states, tombstones, what was lost, and the store's own facts
    async def finish(self, home: str, accept_limbo: bool, limbo_bounds: Sequence[LedgerId]) -> None:
        """Everything else, and one synced commit at the end. StartupError when something hides what it held."""
        self._settle_tombstones()
        limbo = await self._limbo(home, accept_limbo, limbo_bounds)
        await self._mark_lost()
        await self._commit_states()
        # What is flushed from now on must be newer than every flush that left records. Without a proof the commits are
        # counted anew, as in a new index, and damage hides ages: then those to come begin above a floor, far enough
        # above what is known that nothing which turns up later is newer.
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
            self._hide(error.path, str(error))
            limbo = Limbo()
        if not report.unknown_logs:
            return limbo
        if not accept_limbo:
            raise StartupError(
                f"nobody knows what {', '.join(report.unknown_logs[:5])} held: {report.damage[0].what}. Put it back, "
                "or rebuild with --accept-limbo: the bookie then answers for no ledger that may have been there "
                "until they are restored from other bookies"
            )
        proof = self._proof or Proof(b"", 0)
        seen = self._held()
        short = max((each for each in seen if each < LONG_IDS_START), default=NO_LEDGER)
        # The record of limbo may be what was lost: what ended for a ledger then must not count for what comes now.
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
                await self._blocks.drop_all(ledger)  # records of it behind its tombstone: copies that came too late
            else:
                report.ledgers += 1
            puts.append((state_key(ledger), value))
            if len(puts) >= STATES_PER_COMMIT:
                await self._index.commit(puts, sync=False)
                puts = []
        await self._index.commit(puts, sync=False)

    def _held(self) -> set[LedgerId]:
        """Every ledger of which a state, an entry or a loss was found."""
        lost = {ledger_of_block_key(key) for key in self._lost_blocks}
        return self._states.keys() | self._blocks.ledgers | lost | self._contents_lost.keys()

    def _fenced_state(self, ledger: LedgerId, value: bytes | None) -> bytes:
        """What is known of a ledger of which a record was lost, as if the lost one had been its fence."""
        if value is None:
            info = LedgerInfo(ledger, self._chance.token(UNKNOWN_KEY_BYTES))
            info.key_unknown = True
            self.report.without_key.append(ledger)
        else:
            info = decode_state(ledger, value)
        if info.deleted and info.superfluous:
            # The lost record may have been that of its revival, and of entries that it got since.
            info.deleted = info.superfluous = False
            self._contents_lost[ledger] = UNKNOWN_AGE
        if not info.deleted:
            info.fenced = True
            info.contents_lost = info.contents_lost or ledger in self._contents_lost
            self.report.fenced.append(ledger)
        return encode_state(info)


class _KnownState(NamedTuple):
    """A state, out of records of these ages."""

    oldest: Rank
    newest: Rank
    value: bytes


class _Found(NamedTuple):
    """A record of which only its place is kept, and its body when that is a state."""

    ledger: LedgerId
    entry: EntryId
    offset: int
    size: int
    state: bytes


def _found(record: WalkedRecord) -> _Found:
    ledger, entry, offset, body = record
    return _Found(ledger, entry, offset, len(body), bytes(body) if entry == STATE_ENTRY else b"")


def _ages_in(record: WalkedRecord, path: str) -> AgeTable | None:
    """What a footer or map says of ages. A body of a later version says nothing that can be trusted."""
    try:
        log_format.decode_map(record.body, path, record.offset)
        return log_format.ages_of_map(record.body, path, record.offset)
    except DamagedError:
        return AgeTable((), 0)


def _log_of(name: str, directory: str) -> int:
    try:
        return int(name[: -len(LOG_SUFFIX)], 16)
    except ValueError as error:
        raise StartupError(f"{directory}/{name} is no entry log of ours; move it away") from error
