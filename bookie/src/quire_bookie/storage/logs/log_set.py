"""All entry logs of one storage: their states, their folders, and their removal.

Owns the log files' names and states. The index names a log from its first commit on; a file that the index does not
name is left over from an interrupted flush or removal, and is deleted at open. The folder of a log is not stored: the
folders are listed at open. Never deletes a log that the index still names, and never one in quarantine.
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
from quire_bookie.settings.storage import StorageSettings
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
from quire_bookie.storage.stats import StorageStats

_log = logging.getLogger("quire.storage.logs")

QUARANTINE_NAME = "quarantine.txt"

LiveLedger: TypeAlias = Callable[[Sequence[LedgerId]], Awaitable[LedgerId | None]]
"""Returns the first live one of some ledgers, or None."""


class EntryLogs:
    """Owns the logs. Appends go through `flushed` and `compacted`; any task may read."""

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
        self._live_ledgers: dict[int, LedgerId] = {}
        self._unchecked: set[int] = set()
        self._next_log = 1
        self.files = LogFiles(disk, self.path, settings.open_logs_max)
        self.flushed = LogAppender(self, directories, settings.entry_log_bytes_max, stats, parallel=True)
        """The appender of flushes; used under the storage's write lock."""
        self.compacted = LogAppender(
            self, directories, settings.entry_log_bytes_max, stats, settings.compaction_reserved_bytes
        )
        """The appender of compaction, with its own logs and a smaller reserve. Only commits need the write lock."""

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
        """Compare the folders with the index, remove leftovers, and continue the logs that were being written.

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
        """Id of the next log, stored in the index with each commit."""
        return self._next_log

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, log: int) -> bool:
        """Return whether a commit names the log, so that the index may point there."""
        return log in self._states

    def path(self, log: int) -> str:
        """Return the path of a log; that of a missing one is in the first folder."""
        return log_path(self._directory_of.get(log, self.directories.first.path), log)

    def directory_of(self, log: int) -> str:
        """Return the folder of an existing log."""
        return self._directory_of[log]

    def sealed(self) -> list[LogState]:
        """Return the committed states of the sealed logs, in order, without those in quarantine."""
        return [state for log, state in sorted(self._states.items()) if state.sealed and log not in self.quarantine]

    def committed(self) -> list[LogState]:
        """Return the committed states of all logs, in order, including those still written and those in quarantine."""
        return [state for _, state in sorted(self._states.items())]

    def size_bytes(self) -> int:
        """Return the committed size of all logs."""
        return sum(state.durable_bytes for state in self._states.values())

    def salt(self, log: int) -> int:
        """Return the start value of a log's checksums. DamagedError if no commit names the log."""
        salt = self._salts.get(log)
        if salt is None:
            state = self._states.get(log)
            if state is None:
                raise DamagedError(self.path(log), 0, "the index points into an entry log that does not exist")
            salt = self._salts[log] = log_format.salt_of(LogHeader(log, state.uuid, self._storage_uuid))
        return salt

    # ---- for the appenders
    async def create_log(self, directory: str) -> LogWriter:
        """Create a log in a folder; no commit names it yet. DiskFullError."""
        log = self._next_log
        self._next_log = log + 1
        file = await self._disk.open(log_path(directory, log), create=True)
        self._directory_of[log] = directory
        header = LogHeader(log, self._chance.token(16), self._storage_uuid)
        # Set before the index commit: a reader may follow the index here before `committed` is called.
        self._salts[log] = log_format.salt_of(header)
        return LogWriter(file, header, LogState(log, header.uuid), {}, 0)

    async def remove_created(self, log: int) -> None:
        """Remove a log that no commit names."""
        self._salts.pop(log, None)
        await self._disk.remove(self.path(log))
        del self._directory_of[log]

    async def sync_directories(self, paths: Collection[str]) -> None:
        """Make created and removed names durable."""
        for path in sorted(paths):
            await self._disk.sync_dir(path)

    def note_committed(self, state: LogState) -> None:
        """Record that the index has this state."""
        before = self._states.get(state.log)
        assert before is None or (before.durable_bytes <= state.durable_bytes and not before.sealed)
        self._states[state.log] = state

    # ---- removal, under the write lock
    async def drop_dead(self, live: LiveLedger, commits: IndexCommits) -> int:
        """Remove the sealed logs without a live ledger, according to `live`. Return the freed bytes."""
        dead = [state for state in self.sealed() if not await self._is_live(state, live)]
        await self.quarantine.save()
        await self.remove([state.log for state in dead], commits)
        return sum(state.durable_bytes for state in dead)

    async def remove(self, doomed: Sequence[int], commits: IndexCommits) -> None:
        """Remove sealed logs to which the index no longer points: first their names in the index, then the files."""
        if not doomed:
            return
        assert all(self._states[log].sealed for log in doomed), "a log that is written is not removed"
        await commits.commit([], [log_key(log) for log in doomed], next_log=self._next_log)
        folders = {self._directory_of[log] for log in doomed}
        for log in doomed:
            path = self.path(log)
            del self._states[log], self._directory_of[log]
            self._salts.pop(log, None)
            self._live_ledgers.pop(log, None)
            await self.files.forget(log)
            await self._disk.remove(path)
        await self.sync_directories(folders)
        for log in doomed:
            await self.files.forget(log)  # a handle opened concurrently must not keep the space beyond its read
        self._stats.logs_dropped += len(doomed)

    async def read_map(self, log: int) -> LedgerMap:
        """Return the ledgers of a sealed log, from its checksummed map. DamagedError if the map is damaged."""
        state = self._states[log]
        path, size = self.path(log), state.durable_bytes
        seal = await self.files.read(log, size - log_format.SEAL_BYTES, log_format.SEAL_BYTES)
        offset = log_format.decode_seal(seal, log, size, path)
        return log_format.decode_map(await self._file_record(state, offset, log_format.MAP_ENTRY), path, offset)[0]

    async def read_ages(self, log: int) -> LogAges:
        """Return the ages of a sealed log's records. DamagedError if its map or a footer is damaged."""
        state = self._states[log]
        offset, kind = state.pointer, log_format.MAP_ENTRY
        tables: list[AgeTable] = []
        while offset:
            body = await self._file_record(state, offset, kind)
            table = log_format.ages_of_map(body, self.path(log), offset)
            if table is None:
                break  # earlier records were written before ages were stored
            tables.append(table)
            offset, kind = table.earlier, log_format.FOOTER_ENTRY
        return LogAges(log, (run for table in reversed(tables) for run in table.runs))

    def put_in_quarantine(self, log: int, error: DamagedError) -> None:
        """Quarantine a damaged log: it is kept and not appended to; its intact records are still read."""
        if self.quarantine.add(log, self.path(log), str(error)):
            self._stats.logs_damaged += 1

    async def close(self) -> None:
        """Release every handle. Logs being written stay unsealed and are continued at the next start."""
        await self.flushed.close()
        await self.compacted.close()
        await self.files.close()

    async def _is_live(self, state: LogState, live: LiveLedger) -> bool:
        """Return whether a sealed log must be kept; True also if that cannot be determined."""
        if state.log in self._unchecked and not await self._is_whole(state.log):
            return True
        known = self._live_ledgers.get(state.log)
        if known is not None and await live([known]) is not None:
            return True
        try:
            ledgers = sorted(await self.read_map(state.log))
        except DamagedError as error:
            self.put_in_quarantine(state.log, error)
            return True
        for start in range(0, len(ledgers), 1000):
            found = await live(ledgers[start : start + 1000])
            if found is not None:
                self._live_ledgers[state.log] = found
                return True
        return False

    async def _is_whole(self, log: int) -> bool:
        """Check a log's header and, if it is sealed, its map, once per process. A damaged log is quarantined."""
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
            raise DamagedError(path, 0, f"this is log {found.log}, not the one that the index names")
        return header

    async def _reopen(self, state: LogState) -> None:
        """Continue a log that was being written; a damaged one is kept unchanged, for its readable records."""
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
        """Raise DamagedError if durable records follow the last footer, as after a rebuild with a damaged footer.

        The map would not count them either, so the log could be removed although it has live entries.
        """
        end = log_format.LOG_HEADER_BYTES
        if state.pointer:
            head = await self.files.read(state.log, state.pointer, RECORD_HEADER_BYTES)
            end = state.pointer + log_format.record_size(head)
            end += log_format.padding_to(end, log_format.LOG_ALIGNMENT_BYTES)
        if end < state.durable_bytes:
            raise DamagedError(self.path(state.log), end, "no footer counts the records from here on")

    async def _spans_of(self, state: LogState) -> tuple[LedgerMap, int, AgeTable]:
        """Sum up the footers, from the last one back. Return the sum, their number, and the ages after the first."""
        spans: LedgerMap = {}
        offset = state.pointer
        chain = first = 0
        ages: list[Sequence[AgeRun]] = []
        while offset:
            chain += 1
            first = offset
            body = await self._file_record(state, offset, log_format.FOOTER_ENTRY)
            part, previous = log_format.decode_map(body, self.path(state.log), offset)
            table = log_format.ages_of_map(body, self.path(state.log), offset)
            if previous and table is not None:
                ages.append(table.runs)
            if previous >= offset:
                raise DamagedError(self.path(state.log), offset, "a footer names a later one as its predecessor")
            log_format.merge_map(spans, part)
            offset = previous
        return spans, chain, AgeTable([run for runs in reversed(ages) for run in runs], first)

    async def _file_record(self, state: LogState, offset: int, kind: EntryId) -> memoryview:
        path = self.path(state.log)
        size = log_format.record_size(await self.files.read(state.log, offset, RECORD_HEADER_BYTES))
        if offset + size > state.durable_bytes:
            raise DamagedError(path, offset, "a footer or map ends beyond the durable bytes")
        record = await self.files.read(state.log, offset, size)
        return log_format.check_record(self.salt(state.log), record, log_format.FILE_LEDGER, kind, path, offset)

    async def _list_folders(self) -> None:
        """Find the folder of each log. Files that the index does not name, left by a crash, are removed."""
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
        """Refuse to delete another bookie's log that was moved here manually."""
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
        raise StartupError(f"{path} is not an entry log: its name is not a hexadecimal number; move it away") from error
