"""All entry logs of one storage: which there are, in which folder each lies, which can go.

Owns the log files' names and states. A log is named in the index from its first commit on; a file that the index does
not name is the rest of a flush that a crash cut off, or of a removal, and is deleted at open. Where a log lies is not
stored: the folders are listed at open. Never deletes a log that the index names before that name is gone, and never
one that is in quarantine.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeAlias

from quire_bookie.env.chance import Chance
from quire_bookie.env.clock import WallClock
from quire_bookie.env.disk import Disk
from quire_bookie.env.index_store import IndexStore
from quire_bookie.errors import DamagedError, StartupError
from quire_bookie.model import EntryId, LedgerId
from quire_bookie.storage.formats import log_format
from quire_bookie.storage.formats.index_keys import LOGS_END, LOGS_START, log_key, log_of_key
from quire_bookie.storage.formats.log_ages import AgeRun, AgeTable, LogAges
from quire_bookie.storage.formats.log_catalog import LogState, decode_log_state
from quire_bookie.storage.formats.log_format import RECORD_HEADER_BYTES, LedgerMap, LogHeader
from quire_bookie.storage.index.index_commits import LOG_SUFFIX, IndexCommits
from quire_bookie.storage.logs.entry_log import LogFiles, LogWriter, log_path
from quire_bookie.storage.logs.log_appender import LogAppender
from quire_bookie.storage.logs.log_directories import LogDirectories
from quire_bookie.storage.logs.quarantine import Quarantine
from quire_bookie.storage.settings import StorageSettings, StorageStats

_log = logging.getLogger("quire.storage.logs")

QUARANTINE_NAME = "quarantine.txt"

LiveLedger: TypeAlias = Callable[[Sequence[LedgerId]], Awaitable[LedgerId | None]]
"""Answers with the first live one of some ledgers, or None."""


class EntryLogs:
    """The logs. Appending goes through `flushed` and `compacted`; reading is for everybody."""

    def __init__(
        self,
        disk: Disk,
        directories: LogDirectories,
        settings: StorageSettings,
        stats: StorageStats,
        chance: Chance,
        uuid: bytes,
        quarantine: Quarantine,
    ) -> None:
        self._disk = disk
        self.directories = directories
        self._stats = stats
        self._chance = chance
        self._storage_uuid = uuid
        self.quarantine = quarantine
        self._states: dict[int, LogState] = {}
        self._directory_of: dict[int, str] = {}
        self._salts: dict[int, int] = {}
        self._witnesses: dict[int, LedgerId] = {}
        self._unchecked: set[int] = set()
        self._next_log = 1
        self.files = LogFiles(disk, self.path, settings.open_logs_max)
        self.flushed = LogAppender(self, directories, settings.entry_log_bytes_max, stats, parallel=True)
        """What flushes append to; under the storage's write lock."""
        self.compacted = LogAppender(
            self, directories, settings.entry_log_bytes_max, stats, settings.compaction_reserved_bytes
        )
        """What compaction appends to: logs of its own, down to a smaller reserve. Only committing needs the lock."""

    @classmethod
    async def open(
        cls,
        disk: Disk,
        index: IndexStore,
        directories: LogDirectories,
        home: str,
        settings: StorageSettings,
        stats: StorageStats,
        commits: IndexCommits,
        chance: Chance,
        clock: WallClock,
    ) -> "EntryLogs":
        """Compare the folders with the index, remove leftovers, and go on with the log that was being written.

        `home` is the folder of the list of quarantined logs.
        """
        quarantine = Quarantine(disk, f"{home}/{QUARANTINE_NAME}", clock)
        logs = cls(disk, directories, settings, stats, chance, commits.storage_uuid, quarantine)
        logs._next_log = commits.next_log
        async for key, value in index.scan(LOGS_START, LOGS_END):
            log = log_of_key(key)
            logs._states[log] = decode_log_state(log, value)
        suspects = await quarantine.load()
        await logs._list_folders()
        for _log_id, state in sorted(logs._states.items()):
            if not state.sealed and state.log in logs._directory_of:
                await logs._reopen(state)
        logs._unchecked = {log for log, state in logs._states.items() if state.sealed}
        for log in suspects:
            if log not in quarantine and (log not in logs._states or await logs._is_whole(log)):
                quarantine.discard(log)
        await quarantine.save()
        return logs

    @property
    def next_log(self) -> int:
        """Id that the next log will get; goes into the index with each commit."""
        return self._next_log

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, log: int) -> bool:
        """Whether a commit names the log, so that the index may point there."""
        return log in self._states

    def path(self, log: int) -> str:
        """Where a log lies; one that is missing is looked for in the first folder."""
        return log_path(self._directory_of.get(log, self.directories.first.path), log)

    def directory_of(self, log: int) -> str:
        """The folder of a log that is there."""
        return self._directory_of[log]

    def sealed(self) -> list[LogState]:
        """The committed states of the logs that nobody writes to any more, in order, without those in quarantine."""
        return [state for log, state in sorted(self._states.items()) if state.sealed and log not in self.quarantine]

    def committed(self) -> list[LogState]:
        """Return the committed states of all logs, in order: those still written and those in quarantine too."""
        return [state for _, state in sorted(self._states.items())]

    def size_bytes(self) -> int:
        """What all logs take, as far as it is committed."""
        return sum(state.durable_bytes for state in self._states.values())

    def salt(self, log: int) -> int:
        """What the checksums of a log start from. DamagedError when the index names a log that never was committed."""
        salt = self._salts.get(log)
        if salt is None:
            state = self._states.get(log)
            if state is None:
                raise DamagedError(self.path(log), 0, "the index points into an entry log that is not there")
            salt = self._salts[log] = log_format.salt_of(LogHeader(log, state.uuid, self._storage_uuid))
        return salt

    # ---- for the appenders
    async def create_log(self, directory: str) -> LogWriter:
        """A new log in a folder, which no commit names yet. DiskFullError."""
        log = self._next_log
        self._next_log = log + 1
        file = await self._disk.open(log_path(directory, log), create=True)
        self._directory_of[log] = directory
        header = LogHeader(log, self._chance.token(16), self._storage_uuid)
        # Known before the index commit: a reader may follow the index here while `committed` is still to be called.
        self._salts[log] = log_format.salt_of(header)
        return LogWriter(file, header, LogState(log, header.uuid), {}, 0)

    async def remove_created(self, log: int) -> None:
        """Take back a log that no commit names."""
        self._salts.pop(log, None)
        await self._disk.remove(self.path(log))
        del self._directory_of[log]

    async def sync_directories(self, paths: Collection[str]) -> None:
        """Make created and removed names durable."""
        for path in sorted(paths):
            await self._disk.sync_dir(path)

    def note_committed(self, state: LogState) -> None:
        """The index has this state."""
        self._states[state.log] = state

    # ---- removal, under the write lock
    async def drop_dead(self, live: LiveLedger, commits: IndexCommits) -> int:
        """Remove the sealed logs of which `live` knows no ledger any more. Returns the bytes that were freed."""
        dead = [state for state in self.sealed() if not await self._is_live(state, live)]
        await self.quarantine.save()
        await self.remove([state.log for state in dead], commits)
        return sum(state.durable_bytes for state in dead)

    async def remove(self, doomed: Sequence[int], commits: IndexCommits) -> None:
        """Remove sealed logs that nothing in the index points to any more: first their names, then the files."""
        if not doomed:
            return
        await commits.commit([], [log_key(log) for log in doomed], next_log=self._next_log)
        folders = {self._directory_of[log] for log in doomed}
        for log in doomed:
            path = self.path(log)
            del self._states[log], self._directory_of[log]
            self._salts.pop(log, None)
            self._witnesses.pop(log, None)
            await self.files.forget(log)
            await self._disk.remove(path)
        await self.sync_directories(folders)
        for log in doomed:
            await self.files.forget(log)  # a reader that was just opening it keeps its space no longer than its read
        self._stats.logs_dropped += len(doomed)

    async def read_map(self, log: int) -> LedgerMap:
        """The ledgers of a sealed log, from its checksummed map. DamagedError when that is not intact."""
        state = self._states[log]
        path, size = self.path(log), state.durable_bytes
        seal = await self.files.read(log, size - log_format.SEAL_BYTES, log_format.SEAL_BYTES)
        place = log_format.decode_seal(seal, log, size, path)
        return log_format.decode_map(await self._file_record(state, place, log_format.MAP_ENTRY), path, place)[0]

    async def read_ages(self, log: int) -> LogAges:
        """How old the records of a sealed log are. DamagedError when its map or a footer is not intact."""
        state = self._states[log]
        place, kind = state.pointer, log_format.MAP_ENTRY
        tables: list[AgeTable] = []
        while place:
            body = await self._file_record(state, place, kind)
            table = log_format.ages_of_map(body, self.path(log), place)
            if table is None:
                break  # from here on back it was written before there were ages
            tables.append(table)
            place, kind = table.earlier, log_format.FOOTER_ENTRY
        return LogAges(log, (run for table in reversed(tables) for run in table.runs))

    def put_in_quarantine(self, log: int, error: DamagedError) -> None:
        """The log cannot be trusted: it stays, nothing is appended to it, and what is intact is still read."""
        if self.quarantine.add(log, self.path(log), str(error)):
            self._stats.logs_damaged += 1

    async def close(self) -> None:
        """Release every handle. The logs being written stay unsealed and are continued at the next start."""
        await self.flushed.close()
        await self.compacted.close()
        await self.files.close()

    async def _is_live(self, state: LogState, live: LiveLedger) -> bool:
        """Whether a sealed log must stay; in doubt it does."""
        if state.log in self._unchecked and not await self._is_whole(state.log):
            return True
        witness = self._witnesses.get(state.log)
        if witness is not None and await live([witness]) is not None:
            return True
        try:
            ledgers = sorted(await self.read_map(state.log))
        except DamagedError as error:
            self.put_in_quarantine(state.log, error)
            return True
        for start in range(0, len(ledgers), 1000):
            found = await live(ledgers[start : start + 1000])
            if found is not None:
                self._witnesses[state.log] = found
                return True
        return False

    async def _is_whole(self, log: int) -> bool:
        """Look at a log's header and, when it is sealed, at its map: once in a run, for its damage to be known."""
        self._unchecked.discard(log)
        state = self._states[log]
        try:
            await self._check_header(state)
            if state.sealed:
                await self.read_map(log)
        except DamagedError as error:
            self.put_in_quarantine(log, error)
            return False
        return True

    async def _check_header(self, state: LogState) -> LogHeader:
        path = self.path(state.log)
        header = LogHeader(state.log, state.uuid, self._storage_uuid)
        found = log_format.decode_header(await self.files.read(state.log, 0, log_format.LOG_HEADER_BYTES), path)
        if found != header:
            raise DamagedError(path, 0, f"is another log than the index means: {found.log}")
        return header

    async def _reopen(self, state: LogState) -> None:
        """Continue the log that was being written; a damaged one is left as it is, for what can be read of it."""
        path = self.path(state.log)
        try:
            header = await self._check_header(state)
            spans, chain, ages = await self._spans_of(state)
            await self._check_counted(state)
            file = await self._disk.open(path)
            size = await file.size()
            if size < state.durable_bytes:
                await file.close()
                raise DamagedError(path, size, f"ends here, but {state.durable_bytes} bytes were durable")
        except DamagedError as error:
            self.put_in_quarantine(state.log, error)
            return
        if size > state.durable_bytes:
            _log.info("dropped %d bytes of an unfinished flush from %s", size - state.durable_bytes, path)
            await file.truncate(state.durable_bytes)
            await file.sync()
        self.flushed.adopt(LogWriter(file, header, state, spans, chain, ages))

    async def _check_counted(self, state: LogState) -> None:
        """What no footer counts would be in no map either, and nobody would know that the log must stay for it. A
        rebuild of the index leaves such a log, where the last footer was damaged. DamagedError.
        """
        end = log_format.LOG_HEADER_BYTES
        if state.pointer:
            head = await self.files.read(state.log, state.pointer, RECORD_HEADER_BYTES)
            end = state.pointer + log_format.record_size(head)
            end += log_format.padding_to(end, log_format.LOG_ALIGNMENT_BYTES)
        if end < state.durable_bytes:
            raise DamagedError(self.path(state.log), end, "what was written from here on is counted by no footer")

    async def _spans_of(self, state: LogState) -> tuple[LedgerMap, int, AgeTable]:
        """Add up the footers, from the last one back; how many there were; and their ages, the first one's aside."""
        spans: LedgerMap = {}
        place = state.pointer
        chain = first = 0
        ages: list[Sequence[AgeRun]] = []
        while place:
            chain += 1
            first = place
            body = await self._file_record(state, place, log_format.FOOTER_ENTRY)
            part, previous = log_format.decode_map(body, self.path(state.log), place)
            table = log_format.ages_of_map(body, self.path(state.log), place)
            if previous and table is not None:
                ages.append(table.runs)
            if previous >= place:
                raise DamagedError(self.path(state.log), place, "a footer names a later one as its predecessor")
            log_format.merge_map(spans, part)
            place = previous
        return spans, chain, AgeTable([run for runs in reversed(ages) for run in runs], first)

    async def _file_record(self, state: LogState, place: int, kind: EntryId) -> memoryview:
        path = self.path(state.log)
        size = log_format.record_size(await self.files.read(state.log, place, RECORD_HEADER_BYTES))
        if place + size > state.durable_bytes:
            raise DamagedError(path, place, "a record of the log's own ends beyond what was durable")
        record = await self.files.read(state.log, place, size)
        return log_format.check_record(self.salt(state.log), record, log_format.FILE_LEDGER, kind, path, place)

    async def _list_folders(self) -> None:
        """Where each log lies. Files that the index does not name are of a flush or a removal that a crash cut off."""
        for directory in self.directories.all:
            removed = 0
            for name in await self._disk.list_dir(directory.path):
                if not name.endswith(LOG_SUFFIX):
                    continue
                path = f"{directory.path}/{name}"
                log = _log_of(name, path)
                if log in self._directory_of:
                    raise StartupError(f"{path} and {self.path(log)} are the same entry log; move one of them away")
                if log in self._states:
                    self._directory_of[log] = directory.path
                    continue
                await self._check_leftover(path)
                self._next_log = max(self._next_log, log + 1)
                await self._disk.remove(path)
                removed += 1
            if removed:
                await self._disk.sync_dir(directory.path)
                _log.info("removed %d entry logs that no commit names from %s", removed, directory.path)
        for log in self._states:
            if log not in self._directory_of:
                self.put_in_quarantine(log, DamagedError(self.path(log), 0, "the file is missing"))

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
