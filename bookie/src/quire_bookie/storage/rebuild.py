"""The index anew, from the entry logs. Reads logs, writes a new and empty index; changes nothing else.

Owns the rule of what a log proves. Every intact record up to the last footer of a log goes in, later logs winning over
earlier ones, and so do the states of ledgers: keys, fences, explicit LACs, tombstones, limbo. What is damaged:

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, StartupError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.block_index import BlockSegment, merge_block
from quire_bookie.storage.index_commits import LOG_SUFFIX, PROOF_NAME
from quire_bookie.storage.index_keys import (
    BLOCK_MASK,
    BLOCK_SHIFT,
    LIMBO_KEY,
    STORE_KEY,
    block_key,
    last_block_key,
    ledger_of_block_key,
    log_key,
    state_key,
)
from quire_bookie.storage.ledger_states import (
    UNKNOWN_KEY_BYTES,
    LedgerInfo,
    decode_state,
    encode_state,
    merge_states,
)
from quire_bookie.storage.limbo import LONG_IDS_START, NO_LEDGER, Limbo, encode_limbo, read_limbo_file
from quire_bookie.storage.log_catalog import (
    LogState,
    Proof,
    StoreState,
    decode_proof,
    encode_log_state,
    encode_store_state,
)
from quire_bookie.storage.log_format import FILE_LEDGER, FOOTER_ENTRY, MAP_ENTRY, RECORD_HEADER_BYTES, STATE_ENTRY
from quire_bookie.storage.log_walk import LedgerLoss, LogAccount, LogWalk, Piece, WalkedLog, WalkedRecord, open_log

BLOCKS_PER_COMMIT: Final = 2048
LOST_BLOCKS_MAX: Final = 65_536
"""A ledger that lost something in a wider range than this is in limbo by itself: marking each block costs too much."""
STATES_PER_COMMIT: Final = 4096

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
        self._states: dict[LedgerId, bytes] = {}
        self._with_entries: set[LedgerId] = set()
        self._unproven: set[LedgerId] = set()
        self._contents_lost: set[LedgerId] = set()
        self._segments: dict[bytes, list[BlockSegment]] = {}
        self._lost_blocks: set[bytes] = set()
        self._dropped: set[LedgerId] = set()

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
        await self._commit_blocks()

    async def _walk(self, log: int, walked: WalkedLog, progress: Progress | None, done: int, total: int) -> None:
        self._check_owner(log, walked)
        walk, account = LogWalk(walked), LogAccount(walked)
        flush: list[_Found] = []
        map_offset = 0
        async for piece in walk.pieces():
            account.add(piece)
            for record in piece.records:
                if record.ledger != FILE_LEDGER:
                    flush.append(_found(record))
                elif record.entry in (FOOTER_ENTRY, MAP_ENTRY):
                    map_offset = record.offset if record.entry == MAP_ENTRY else 0
                    self._take(log, flush)
                    flush = []
            self._note_gaps(walked.path, piece)
            if len(self._segments) >= BLOCKS_PER_COMMIT:
                await self._commit_blocks()
            if progress is not None:
                progress(done + walk.offset, total)
            await asyncio.sleep(0)
        # Behind the last footer: part of a sealed log, or of what was durable; otherwise a flush that a crash cut off.
        sealed = walked.sealed or walk.reached_map or (log in self._named and log not in self._durable)
        durable = walked.size_bytes if sealed else max(walk.flush_end, self._durable.get(log, 0))
        self._take(log, [found for found in flush if found.offset < durable])
        if not sealed:
            self._forget_torn_tail(walked.path, durable)
        self._judge(log, walked, account, sealed)
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
        open_key, end = b"", -1
        lows: list[int] = []
        sizes: list[int] = []
        for ledger, entry, offset, size, state in flush:
            if entry == STATE_ENTRY:
                self._take_state(ledger, state)
                continue
            key = block_key(ledger, entry >> BLOCK_SHIFT)
            low = entry & BLOCK_MASK
            if key != open_key or offset != end or low <= lows[-1]:
                lows, sizes, open_key = [], [], key
                self._segments.setdefault(key, []).append(BlockSegment(log, offset, lows, sizes))
                self._with_entries.add(ledger)
            lows.append(low)
            sizes.append(size)
            end = offset + size + RECORD_HEADER_BYTES
            self.report.entries += 1

    def _take_state(self, ledger: LedgerId, value: bytes) -> None:
        """A later record of a state wins, but compaction may have left a record in a log of a lower number than it had:

        the tombstone of a superfluous copy never beats a later life of the ledger, and drops nothing before everything
        is read; what lives behind any tombstone is as fenced as the tombstone was.
        """
        known = self._states.get(ledger)
        try:
            newer = decode_state(ledger, value)
        except DamagedError:
            self._unproven.add(ledger)  # its record is intact: of a later version
            return
        older = None if known is None else decode_state(ledger, known)
        if newer.deleted:
            if older is not None and not older.deleted and older.revivals > newer.revivals:
                return
            if not newer.superfluous:
                self._drop(ledger)
        elif older is not None and older.deleted:
            newer.fenced = True
            value = encode_state(newer)
        elif older is not None:
            value = merge_states(older, newer)
        self._states[ledger] = value

    def _drop(self, ledger: LedgerId) -> None:
        """A tombstone: what came before is gone, also when a ledger of that id came back later."""
        self._unproven.discard(ledger)
        self._contents_lost.discard(ledger)
        self._lost_blocks = {key for key in self._lost_blocks if ledger_of_block_key(key) != ledger}
        if ledger in self._with_entries:
            self._with_entries.discard(ledger)
            self._segments = {key: found for key, found in self._segments.items() if ledger_of_block_key(key) != ledger}
            self._dropped.add(ledger)

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

    def _judge(self, log: int, walked: WalkedLog, account: LogAccount, sealed: bool) -> None:
        """What the gaps of a log cost."""
        if log not in self._named and self._proof is not None and self._proof.runs is not None:
            return  # no commit that the proof knows names it: the journal still has everything in it
        expected = account.expected(sealed=sealed, durable_bytes=self._durable.get(log, 0))
        if expected is None:
            self._hide(
                walked.path, "what it held is not known: its own maps are damaged as well, or its end is missing"
            )
            return
        for ledger, loss in sorted(account.losses(expected).items()):
            self._unproven.add(ledger)
            if loss.entries:
                self._lose(ledger, loss)

    def _lose(self, ledger: LedgerId, loss: LedgerLoss) -> None:
        """Mark the blocks of what was lost, so that their misses are not absence."""
        self.report.losses.append((ledger, loss.first, loss.last, loss.entries))
        self._with_entries.add(ledger)
        first, last = loss.first >> BLOCK_SHIFT, loss.last >> BLOCK_SHIFT
        if loss.suspects:
            blocks: Iterable[int] = {entry >> BLOCK_SHIFT for entry in loss.suspects}
        elif last - first < LOST_BLOCKS_MAX:
            blocks = range(first, last + 1)
        else:
            self._contents_lost.add(ledger)
            return
        for block in blocks:
            self._lost_blocks.add(block_key(ledger, block))

    async def _commit_blocks(self) -> None:
        dropped, self._dropped = sorted(self._dropped), set()
        for ledger in dropped:
            await self._index.delete_range(block_key(ledger, 0), last_block_key(ledger) + b"\0")
        keys = sorted(self._segments)
        for start in range(0, len(keys), BLOCKS_PER_COMMIT):
            part = keys[start : start + BLOCKS_PER_COMMIT]
            old = await self._index.get_many(part)
            puts = [(key, merge_block(key, was, self._segments[key])) for key, was in zip(part, old, strict=True)]
            await self._index.commit(puts, sync=False)
            await asyncio.sleep(0)
        self._segments = {}

    # ---- states, tombstones, what was lost, and the store's own facts
    async def finish(self, home: str, accept_limbo: bool, limbo_bounds: Sequence[LedgerId]) -> None:
        """Everything else, and one synced commit at the end. StartupError when something hides what it held."""
        limbo = await self._limbo(home, accept_limbo, limbo_bounds)
        await self._mark_lost()
        await self._commit_states()
        number = 1 if self._proof is None else self._proof.number + 1
        next_log = max((*self._paths, *self._named, 0)) + 1
        puts = [(log_key(state.log), encode_log_state(state)) for state in self._log_states]
        if limbo.number:
            puts.append((LIMBO_KEY, encode_limbo(limbo)))
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
        seen = self._with_entries | self._states.keys()
        short = max((each for each in seen if each < LONG_IDS_START), default=NO_LEDGER)
        # The record of limbo may be what was lost: what ended for a ledger then must not count for what comes now.
        ended = max((decode_state(ledger, state).limbo_ended for ledger, state in self._states.items()), default=0)
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
        for ledger in sorted(self._states.keys() | self._with_entries | self._unproven):
            value = self._states.get(ledger)
            if value is None or ledger in self._unproven or ledger in self._contents_lost:
                value = self._fenced_state(ledger, value)
            info = decode_state(ledger, value)
            if info.deleted:
                report.deleted_ledgers += 1
                if ledger in self._with_entries:  # records of it lie behind its tombstone: copies that came too late
                    await self._index.delete_range(block_key(ledger, 0), last_block_key(ledger) + b"\0")
            else:
                report.ledgers += 1
            puts.append((state_key(ledger), value))
            if len(puts) >= STATES_PER_COMMIT:
                await self._index.commit(puts, sync=False)
                puts = []
        await self._index.commit(puts, sync=False)

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
            self._contents_lost.add(ledger)
        if not info.deleted:
            info.fenced = True
            info.contents_lost = info.contents_lost or ledger in self._contents_lost
            self.report.fenced.append(ledger)
        return encode_state(info)


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


def _log_of(name: str, directory: str) -> int:
    try:
        return int(name[: -len(LOG_SUFFIX)], 16)
    except ValueError as error:
        raise StartupError(f"{directory}/{name} is no entry log of ours; move it away") from error
