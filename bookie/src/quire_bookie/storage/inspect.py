"""Inspects the ledger folders of a stopped bookie, for administrators. Read-only, and the index is open read-only.

Owns the inspection of entry logs, of the index and of single ledgers, and the full check of logs and index against each
other. Damage is a finding, never an error, unless no result at all is possible.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import field

from quire_bookie.dataclass import dataclass
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, NoSuchLedgerError
from quire_bookie.model import NO_ENTRY, EntryId, LedgerId
from quire_bookie.storage.entry_ranges import EntryRange, join_ranges
from quire_bookie.storage.formats.block_index import decode_block
from quire_bookie.storage.formats.index_keys import (
    BLOCK_SHIFT,
    LIMBO_KEY,
    LOGS_END,
    LOGS_START,
    STATES_END,
    STATES_START,
    STORE_KEY,
    block_key,
    block_of_key,
    last_block_key,
    ledger_of_state_key,
    log_of_key,
    state_key,
)
from quire_bookie.storage.formats.log_catalog import LogState, decode_log_state, decode_store_state
from quire_bookie.storage.formats.log_format import FILE_LEDGER, STATE_ENTRY, LedgerMap
from quire_bookie.storage.index.index_commits import LOG_SUFFIX
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo, decode_state
from quire_bookie.storage.ledgers.limbo import Limbo, decode_limbo
from quire_bookie.storage.logs.entry_log import log_path
from quire_bookie.storage.logs.log_walk import Gap, LogAccount, LogWalk, open_log
from quire_bookie.storage.scrub import BLOCKS_END, BLOCKS_START, Damage, Scrub, ScrubbedLog, ScrubStats

Progress = Callable[[int], None]
"""Called with the bytes read since the last call."""


@dataclass(slots=True)
class InspectedLog:
    """One entry log. `spans`: its content by ledger; `records`: those of the requested ledger."""

    log: int
    path: str
    size_bytes: int = 0
    sealed: bool = False
    entries: int = 0
    states: int = 0
    spans: LedgerMap = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    records: list[tuple[EntryId, int, int]] = field(default_factory=list)
    """(entry, offset, size of its body in bytes); entry -2 is a record of the ledger's state."""
    what: str = ""


@dataclass(slots=True)
class InspectedIndex:
    """The index as a whole."""

    commit: int = 0
    storage_uuid: str = ""
    ledgers: int = 0
    fenced: int = 0
    deleted: int = 0
    in_limbo: int = 0
    without_key: int = 0
    limbo: Limbo = field(default_factory=Limbo)
    logs: list[LogState] = field(default_factory=list)
    blocks: int = 0
    entries: int = 0
    damage: list[str] = field(default_factory=list)


@dataclass(slots=True)
class InspectedLedger:
    """The entries of one ledger in the entry logs, according to the index; entries only in the journal are missing."""

    info: LedgerInfo
    limbo: bool
    ranges: list[EntryRange] = field(default_factory=list)
    entries: int = 0
    size_bytes: int = 0
    bytes_by_log: dict[int, int] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)


async def list_logs(disk: Disk, directories: Sequence[str]) -> dict[int, str]:
    """Return the paths of the entry logs in some folders, ascending by id. Other file names are ignored."""
    found: dict[int, str] = {}
    for directory in directories:
        for name in await disk.list_dir(directory):
            if name.endswith(LOG_SUFFIX) and all(digit in "0123456789abcdef" for digit in name[: -len(LOG_SUFFIX)]):
                found[int(name[: -len(LOG_SUFFIX)], 16)] = f"{directory}/{name}"
    return dict(sorted(found.items()))


async def inspect_log(
    disk: Disk, log: int, path: str, ledger: LedgerId | None = None, progress: Progress | None = None
) -> InspectedLog:
    """Read one log. Its damage is in `gaps` and `what`."""
    found = InspectedLog(log, path)
    try:
        walked = await open_log(disk, path)
    except DamagedError as error:
        found.what = str(error)
        return found
    try:
        found.size_bytes, found.sealed = walked.size_bytes, walked.sealed
        walk, account = LogWalk(walked), LogAccount(walked)
        async for piece in walk.pieces():
            account.add(piece)
            for record in piece.records:
                if record.ledger == FILE_LEDGER:
                    continue
                found.states += record.entry == STATE_ENTRY
                found.entries += record.entry >= 0
                if record.ledger == ledger:
                    found.records.append((record.entry, record.offset, len(record.body)))
            if progress is not None:
                progress(piece.size_bytes)
            await asyncio.sleep(0)
    finally:
        await walked.file.close()
    found.spans, found.gaps = account.found, account.gaps
    if found.gaps:
        found.what = f"{sum(gap.end - gap.offset for gap in found.gaps)} bytes hold no intact record"
    return found


async def inspect_index(index: IndexStore) -> InspectedIndex:
    """Summarise the index. DamagedError if its own metadata cannot be read."""
    found = InspectedIndex()
    value = await index.get(STORE_KEY)
    if value is not None:
        store = decode_store_state(value)
        found.commit, found.storage_uuid = store.number, store.storage_uuid.hex()
    value = await index.get(LIMBO_KEY)
    if value is not None:
        found.limbo = decode_limbo(value, "index")
    async for key, value in index.scan(LOGS_START, LOGS_END):
        found.logs.append(decode_log_state(log_of_key(key), value))
    await _count_states(index, found)
    try:
        async for key, value in index.scan(BLOCKS_START, BLOCKS_END):
            found.blocks += 1
            try:
                block = decode_block(key, value)
            except DamagedError as error:
                found.damage.append(str(error))
                continue
            found.entries += sum(len(segment.lows) for segment in block.segments)
            if block.lost:
                found.damage.append(f"index key {key.hex()}: a part of the block was lost to damage")
    except DamagedError as error:
        found.damage.append(str(error))
    return found


async def _count_states(index: IndexStore, found: InspectedIndex) -> None:
    try:
        async for key, value in index.scan(STATES_START, STATES_END):
            try:
                info = decode_state(ledger_of_state_key(key), value)
            except DamagedError as error:
                found.damage.append(str(error))
                continue
            found.deleted += info.deleted
            if not info.deleted:
                found.ledgers += 1
                found.fenced += info.fenced
                found.without_key += info.key_unknown
                found.in_limbo += _in_limbo(info, found.limbo)
    except DamagedError as error:
        found.damage.append(str(error))


async def inspect_ledgers(index: IndexStore) -> list[tuple[LedgerInfo, bool]]:
    """Return every ledger with its state, and whether it is in limbo; ascending. DamagedError."""
    value = await index.get(LIMBO_KEY)
    limbo = Limbo() if value is None else decode_limbo(value, "index")
    found: list[tuple[LedgerInfo, bool]] = []
    async for key, value in index.scan(STATES_START, STATES_END):
        info = decode_state(ledger_of_state_key(key), value)
        found.append((info, _in_limbo(info, limbo)))
    return found


async def inspect_ledger(index: IndexStore, ledger: LedgerId) -> InspectedLedger:
    """Inspect one ledger. NoSuchLedgerError; DamagedError if its state cannot be read."""
    value = await index.get(LIMBO_KEY)
    limbo = Limbo() if value is None else decode_limbo(value, "index")
    value = await index.get(state_key(ledger))
    if value is None:
        where = "in limbo: it may have been lost" if limbo.active and limbo.covers(ledger) else "not in the index"
        raise NoSuchLedgerError(f"ledger {ledger} is {where}; entries that are only in the journal are not shown")
    info = decode_state(ledger, value)
    found = InspectedLedger(info, _in_limbo(info, limbo))
    ids: list[EntryRange] = []
    try:
        async for key, value in index.scan(block_key(ledger, 0), last_block_key(ledger) + b"\0"):
            base = block_of_key(key) << BLOCK_SHIFT
            try:
                block = decode_block(key, value)
            except DamagedError as error:
                found.damage.append(f"entries {base} to {base + 255}: {error}")
                continue
            if block.lost:
                found.damage.append(f"entries {base} to {base + 255}: some were lost to damage")
            for segment in block.segments:
                ids += [(EntryId(base | low), EntryId(base | low)) for low in segment.lows]
                size = sum(segment.sizes)
                found.size_bytes += size
                found.bytes_by_log[segment.log] = found.bytes_by_log.get(segment.log, 0) + size
    except DamagedError as error:
        found.damage.append(str(error))
    found.ranges = join_ranges([ids])
    found.entries = len(ids)
    return found


async def check_all(
    disk: Disk, index: IndexStore, directories: Sequence[str], progress: Progress | None = None
) -> tuple[list[Damage], ScrubStats]:
    """Check every log and every value of the index against each other. DamagedError if the list of logs is damaged."""
    found: dict[Damage, None] = {}
    states = {state.log: state for state in (await inspect_logs_of_index(index))}
    paths = await list_logs(disk, directories)

    async def pace(size_bytes: int) -> None:
        if progress is not None:
            progress(size_bytes)
        await asyncio.sleep(0)

    scrub = Scrub(disk, index, lambda damage: found.setdefault(damage), pace)
    known = {log: ScrubbedLog.of(states[log], path) for log, path in paths.items() if log in states}
    await scrub.logs(lambda: known)
    for log in sorted(states.keys() - paths.keys()):
        path = log_path(directories[0], log)
        found[Damage(FILE_LEDGER, NO_ENTRY, NO_ENTRY, path, 0, "the entry log is missing")] = None
    await scrub.index_alone(known.__contains__)
    return list(found), scrub.stats


async def inspect_logs_of_index(index: IndexStore) -> list[LogState]:
    """Return the logs that the index names. DamagedError."""
    return [decode_log_state(log_of_key(key), value) async for key, value in index.scan(LOGS_START, LOGS_END)]


def _in_limbo(info: LedgerInfo, limbo: Limbo) -> bool:
    covered = limbo.active and limbo.covers(info.ledger_id) and info.limbo_ended < limbo.generation
    return not info.deleted and (info.contents_lost or covered)
