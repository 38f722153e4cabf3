"""All entry logs of one directory: which there are, which is written, which can go.

Owns the log files' names and states. A log is named in the index from its first commit on; a file that the index does
not name is the rest of a flush that a crash cut off, or of a removal, and is deleted at open. Never deletes a log that
the index names before that name is gone, and never one whose map it cannot read.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from quire_bookie.env.chance import Chance
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, StartupError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage import log_format
from quire_bookie.storage.entry_log import LogFiles, LogWriter, log_path
from quire_bookie.storage.index_commits import LOG_SUFFIX, IndexCommits
from quire_bookie.storage.index_keys import LOGS_END, LOGS_START, log_key, log_of_key
from quire_bookie.storage.log_catalog import LogState, decode_log_state, encode_log_state
from quire_bookie.storage.log_format import RECORD_HEADER_BYTES, LedgerMap, LogHeader
from quire_bookie.storage.settings import StorageSettings, StorageStats

_log = logging.getLogger("quire.storage.logs")

LiveLedger: TypeAlias = Callable[[Sequence[LedgerId]], Awaitable[LedgerId | None]]
"""Answers with the first live one of some ledgers, or None."""


class EntryLogs:
    """The logs. Appending is for the holder of the storage's write lock; reading is for everybody."""

    def __init__(
        self, disk: Disk, directory: str, settings: StorageSettings, stats: StorageStats, chance: Chance, uuid: bytes
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._stats = stats
        self._chance = chance
        self._storage_uuid = uuid
        self._states: dict[int, LogState] = {}
        self._salts: dict[int, int] = {}
        self._witnesses: dict[int, LedgerId] = {}
        self._writer: LogWriter | None = None
        self._opened_here: list[int] = []
        self._finished: list[tuple[LogWriter, LogState]] = []
        self._next_log = 1
        self.files = LogFiles(disk, directory, settings.open_logs_max)

    @classmethod
    async def open(
        cls,
        disk: Disk,
        index: IndexStore,
        directory: str,
        settings: StorageSettings,
        stats: StorageStats,
        commits: IndexCommits,
        chance: Chance,
    ) -> "EntryLogs":
        """Compare the folder with the index, remove leftovers, and go on with the log that was being written."""
        logs = cls(disk, directory, settings, stats, chance, commits.storage_uuid)
        logs._next_log = commits.next_log
        async for key, value in index.scan(LOGS_START, LOGS_END):
            log = log_of_key(key)
            logs._states[log] = decode_log_state(log, value)
        await logs._remove_leftovers()
        for _key, state in sorted(logs._states.items()):
            if not state.sealed:
                await logs._reopen(state)
        return logs

    @property
    def next_log(self) -> int:
        """Id that the next log will get; goes into the index with each commit."""
        return self._next_log

    def __len__(self) -> int:
        return len(self._states)

    def salt(self, log: int) -> int:
        """What the checksums of a log start from. DamagedError when the index names a log that never was committed."""
        salt = self._salts.get(log)
        if salt is None:
            state = self._states.get(log)
            if state is None:
                raise DamagedError(self.files.path(log), 0, "the index points into an entry log that is not there")
            salt = self._salts[log] = log_format.salt_of(LogHeader(log, state.uuid, self._storage_uuid))
        return salt

    # ---- appending, under the write lock
    async def writer_with_room(self, size_bytes: int) -> LogWriter:
        """The log to append to; seals the present one when `size_bytes` more would not fit."""
        writer = self._writer
        if writer is not None and not writer.is_empty and writer.room(self._settings.entry_log_bytes_max) < size_bytes:
            self._finished.append((writer, await writer.seal()))
            self._stats.logs_sealed += 1
            writer = self._writer = None
        if writer is None:
            writer = self._writer = await self._create()
        return writer

    async def end_flush(self) -> list[tuple[bytes, bytes]]:
        """Make everything appended durable; returns the log states to commit with the index."""
        if self._writer is not None and self._writer.is_dirty:
            self._finished.append((self._writer, await self._writer.end_flush()))
        if self._opened_here:
            await self._disk.sync_dir(self._directory)
        return [(log_key(state.log), encode_log_state(state)) for _writer, state in self._finished]

    async def committed(self) -> None:
        """The states of `end_flush` are in the index."""
        finished, self._finished, self._opened_here = self._finished, [], []
        for writer, state in finished:
            self._states[state.log] = state
            writer.commit(state)
            if state.sealed:
                await writer.close()

    async def rewind(self) -> None:
        """Take back an unfinished flush: the space of its records is free again. Readers never saw them."""
        writers = [writer for writer, _state in self._finished]
        if self._writer is not None and self._writer not in writers:
            writers.append(self._writer)
        opened, self._opened_here, self._finished, self._writer = self._opened_here, [], [], None
        for writer in writers:
            if writer.log in opened:
                await writer.close()
            else:
                await writer.rewind()
                self._writer = writer
        for log in opened:
            self._salts.pop(log, None)
            await self._disk.remove(self.files.path(log))
        if opened:
            await self._disk.sync_dir(self._directory)

    # ---- removal, under the write lock
    async def drop_dead(self, live: LiveLedger, commits: IndexCommits) -> int:
        """Remove the sealed logs of which `live` knows no ledger any more. Returns the bytes that were freed."""
        dead = [state for state in list(self._states.values()) if state.sealed and not await self._is_live(state, live)]
        if not dead:
            return 0
        await commits.commit([], [log_key(state.log) for state in dead], next_log=self._next_log)
        for state in dead:
            del self._states[state.log]
            self._salts.pop(state.log, None)
            self._witnesses.pop(state.log, None)
            await self.files.forget(state.log)
            await self._disk.remove(self.files.path(state.log))
        await self._disk.sync_dir(self._directory)
        self._stats.logs_dropped += len(dead)
        return sum(state.durable_bytes for state in dead)

    async def read_map(self, log: int) -> LedgerMap:
        """The ledgers of a sealed log, from its checksummed map. DamagedError when that is not intact."""
        state = self._states[log]
        path, size = self.files.path(log), state.durable_bytes
        seal = await self.files.read(log, size - log_format.SEAL_BYTES, log_format.SEAL_BYTES)
        place = log_format.decode_seal(seal, log, size, path)
        return log_format.decode_map(await self._file_record(state, place, log_format.MAP_ENTRY), path, place)[0]

    async def close(self) -> None:
        """Release every handle. The log being written stays unsealed and is continued at the next start."""
        if self._writer is not None:
            await self._writer.close()
        await self.files.close()

    async def _is_live(self, state: LogState, live: LiveLedger) -> bool:
        witness = self._witnesses.get(state.log)
        if witness is not None and await live([witness]) is not None:
            return True
        try:
            ledgers = sorted(await self.read_map(state.log))
        except DamagedError as error:
            self._stats.logs_damaged += 1
            _log.error("entry log %d stays: its map cannot be read: %s", state.log, error)
            return True
        for start in range(0, len(ledgers), 1000):
            found = await live(ledgers[start : start + 1000])
            if found is not None:
                self._witnesses[state.log] = found
                return True
        return False

    async def _create(self) -> LogWriter:
        log = self._next_log
        self._next_log = log + 1
        file = await self._disk.open(log_path(self._directory, log), create=True)
        self._opened_here.append(log)
        header = LogHeader(log, self._chance.token(16), self._storage_uuid)
        # Known before the index commit: a reader may follow the index here while `committed` is still to be called.
        self._salts[log] = log_format.salt_of(header)
        return LogWriter(file, header, LogState(log, header.uuid), {}, 0)

    async def _reopen(self, state: LogState) -> None:
        """Continue the log that was being written; a damaged one is left as it is, for what can be read of it."""
        path = self.files.path(state.log)
        header = LogHeader(state.log, state.uuid, self._storage_uuid)
        try:
            found = log_format.decode_header(await self.files.read(state.log, 0, log_format.LOG_HEADER_BYTES), path)
            if found != header:
                raise DamagedError(path, 0, f"is another log than the index means: {found.log}")
            spans, chain = await self._spans_of(state)
            file = await self._disk.open(path)
            size = await file.size()
            if size < state.durable_bytes:
                await file.close()
                raise DamagedError(path, size, f"ends here, but {state.durable_bytes} bytes were durable")
        except DamagedError as error:
            self._stats.logs_damaged += 1
            _log.error("entry log %d is not continued: %s", state.log, error)
            return
        if size > state.durable_bytes:
            _log.info("dropped %d bytes of an unfinished flush from %s", size - state.durable_bytes, path)
            await file.truncate(state.durable_bytes)
            await file.sync()
        if self._writer is not None:
            # An older one that could not be read at an earlier start: it stays as it is, the newest goes on.
            await self._writer.close()
        self._writer = LogWriter(file, header, state, spans, chain)

    async def _spans_of(self, state: LogState) -> tuple[LedgerMap, int]:
        """Add up the footers, from the last one back; and how many there were."""
        spans: LedgerMap = {}
        place = state.pointer
        chain = 0
        while place:
            chain += 1
            body = await self._file_record(state, place, log_format.FOOTER_ENTRY)
            part, previous = log_format.decode_map(body, self.files.path(state.log), place)
            if previous >= place:
                raise DamagedError(self.files.path(state.log), place, "a footer names a later one as its predecessor")
            log_format.merge_map(spans, part)
            place = previous
        return spans, chain

    async def _file_record(self, state: LogState, place: int, kind: EntryId) -> memoryview:
        path = self.files.path(state.log)
        size = log_format.record_size(await self.files.read(state.log, place, RECORD_HEADER_BYTES))
        if place + size > state.durable_bytes:
            raise DamagedError(path, place, "a record of the log's own ends beyond what was durable")
        record = await self.files.read(state.log, place, size)
        return log_format.check_record(self.salt(state.log), record, log_format.FILE_LEDGER, kind, path, place)

    async def _remove_leftovers(self) -> None:
        """Files that the index does not name: of a flush or a removal that a crash cut off."""
        removed = 0
        for name in await self._disk.list_dir(self._directory):
            if not name.endswith(LOG_SUFFIX):
                continue
            path = f"{self._directory}/{name}"
            log = _log_of(name, path)
            if log in self._states:
                continue
            await self._check_leftover(path)
            self._next_log = max(self._next_log, log + 1)
            await self._disk.remove(path)
            removed += 1
        if removed:
            await self._disk.sync_dir(self._directory)
            _log.info("removed %d entry logs that no commit names from %s", removed, self._directory)
        for log in self._states:
            if not await self._disk.exists(self.files.path(log)):
                self._stats.logs_damaged += 1
                _log.error("%s is missing; reads of its entries answer with an error", self.files.path(log))

    async def _check_leftover(self, path: str) -> None:
        """Refuse to delete another bookie's log that was put here by hand."""
        file = await self._disk.open_read_only(path)
        try:
            head = await file.read(0, log_format.LOG_HEADER_BYTES)
        finally:
            await file.close()
        try:
            header = log_format.decode_header(head, path)
        except DamagedError:
            return  # a crash before the first sync left no header
        if header.storage_uuid != self._storage_uuid:
            raise StartupError(f"{path} belongs to another bookie's storage; move it away")


def _log_of(name: str, path: str) -> int:
    try:
        return int(name[: -len(LOG_SUFFIX)], 16)
    except ValueError as error:
        raise StartupError(f"{path} is no entry log of ours; move it away") from error
