"""The index store on RocksDB, through rocksdict, on its own threads.

Owns the database folder and its memory: block cache (index and filter blocks included) and write buffers together stay
within the configured bytes. Never blocks the event loop, and never returns None for a key whose block is damaged:
every block's checksum is verified, a write-ahead log with a hole is refused at open, and corruption reported by RocksDB
raises DamagedError. `index_logs` verifies the log files before RocksDB opens them, as some flipped bits make that open
hang. Gets and seeks that queue up while the thread is busy are served in one hop.

RocksDB itself does not detect a write-ahead log truncated exactly between two commits (`index_commits` does), nor an
older copy of the manifest (`index_chain` does).
"""

import asyncio
import functools
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import rocksdict

from quire_bookie import limits
from quire_bookie.errors import DamagedError, DiskFullError, StartupError, StorageError
from quire_bookie.storage.index.index_chain import LINKS_END, LINKS_START, CommitChain
from quire_bookie.storage.index.index_logs import check_logs

T = TypeVar("T")
PAIRS_PER_HOP: Final = 1024
_NOT_DAMAGE: Final = (
    "lock hold",
    "While lock file",
    "Permission denied",
    "Read-only file system",
    "Too many open files",
)
_WRITE_SHARE = 4  # write buffers get a quarter of the memory


class RocksIndexStore:
    """Implements the `IndexStore` port."""

    def __init__(self, path: str, cache_bytes: int, read_only: bool = False) -> None:
        self._path = path
        self._read_only = read_only
        self._cache_bytes = cache_bytes
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="index-read")
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="index-write")
        self._queued: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []
        self._hop: asyncio.Task[None] | None = None
        self._broken = False
        self._reopening = threading.Lock()
        self._db: Any = None
        self._chain = CommitChain()

    @classmethod
    async def open(
        cls, path: str, *, cache_bytes: int = limits.INDEX_CACHE_BYTES, read_only: bool = False
    ) -> "RocksIndexStore":
        """Open or create the database in `path`. `cache_bytes` bounds its memory; `read_only` never modifies it.

        DamagedError: it is damaged. StartupError: it is in use, or access is denied. DiskFullError.
        """
        store = cls(path, cache_bytes, read_only)
        opening = asyncio.ensure_future(store._run(store._writes, store._open_database))
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread continues. The database it opens must be closed before it can be opened again.
            await asyncio.wait((opening,))
            if opening.exception() is None:
                await store.close()
            else:
                store._reads.shutdown(wait=False)
                store._writes.shutdown(wait=False)
            raise
        except StorageError as error:
            store._reads.shutdown(wait=False)
            store._writes.shutdown(wait=False)
            if isinstance(error, DamagedError | DiskFullError):
                raise
            if any(part in str(error) for part in _NOT_DAMAGE):
                raise StartupError(f"the index {path} cannot be opened: {error}") from error
            # Files are missing, or are not RocksDB's.
            raise DamagedError(path, 0, str(error)) from error
        return store

    # ---- the port
    async def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if the key is provably absent."""
        return (await self.get_many((key,)))[0]

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return one result per key, in order. DamagedError if one of them cannot be read."""
        return await self._read(functools.partial(self._get_all, keys)) if keys else []

    async def last_at_or_below(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """Return the highest pair with lower <= k <= key."""
        return await self._read(functools.partial(self._seek_last, key, lower))

    async def scan(self, start: bytes, end: bytes) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield the pairs with start <= key < end, ascending, from one snapshot."""
        iterator = await self._run(self._reads, functools.partial(self._seek_first, start))
        while True:
            pairs = await self._run(self._reads, functools.partial(_next_pairs, iterator, end))
            for pair in pairs:
                yield pair
            if len(pairs) < PAIRS_PER_HOP:
                return

    async def commit(
        self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes] = (), *, sync: bool = True
    ) -> None:
        """Apply all changes or none. DiskFullError: none."""
        await self._run(self._writes, functools.partial(self._write, puts, deletes, sync))

    async def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete start <= key < end. Durable with the next synced commit."""
        await self._run(self._writes, functools.partial(self._delete_range, start, end))

    async def close(self) -> None:
        """Flush and release."""
        if self._hop is not None:
            await asyncio.wait((self._hop,))
        await self._run(self._reads, _nothing)
        await self._run(self._writes, self._close_database)
        self._reads.shutdown(wait=False)
        self._writes.shutdown(wait=False)

    @property
    def memory_bytes(self) -> int:
        """The size of RocksDB's block cache."""
        return int(self._block_cache.get_usage())

    # ---- reads, many per hop
    async def _read(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread of reads, in one hop with the other reads that queue up during the current one."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queued.append((work, answer))
        if self._hop is None:
            self._hop = asyncio.get_running_loop().create_task(self._serve_queued())
        return await answer

    async def _serve_queued(self) -> None:
        while self._queued:
            batch, self._queued = self._queued, []
            works = [work for work, _answer in batch]
            try:
                outcomes = await self._run(self._reads, functools.partial(_outcomes, works, self._path))
            except RuntimeError as error:  # close ended the threads
                outcomes = [error] * len(batch)
            for (_work, answer), outcome in zip(batch, outcomes, strict=True):
                if answer.done():
                    continue
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
        self._hop = None

    # ---- on the threads
    def _open_database(self) -> None:
        check_logs(self._path)
        write_bytes = max(limits.MIB, self._cache_bytes // _WRITE_SHARE)
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_paranoid_checks(True)
        # A synced commit must never disappear: a hole in the log is an error, a torn end is not.
        options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_db_write_buffer_size(write_bytes)
        options.set_write_buffer_size(max(limits.MIB // 2, write_bytes // 2))
        options.set_max_write_buffer_number(2)
        options.set_max_total_wal_size(2 * write_bytes)
        options.set_max_background_jobs(2)
        options.set_recycle_log_file_num(0)  # `check_logs` does not support recycled logs
        options.set_keep_log_file_num(3)
        options.set_max_open_files(256)
        options.set_compression_type(rocksdict.DBCompressionType.none())
        table = rocksdict.BlockBasedOptions()
        self._block_cache = rocksdict.Cache(max(limits.MIB, self._cache_bytes - write_bytes))
        table.set_block_cache(self._block_cache)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        table.set_bloom_filter(10, False)
        table.set_block_size(8 * limits.KIB)
        table.set_checksum_type(rocksdict.ChecksumType.crc32c())
        options.set_block_based_table_factory(table)
        access = rocksdict.AccessType.read_only() if self._read_only else rocksdict.AccessType.read_write()
        self._db = rocksdict.Rdict(self._path, options=options, access_type=access)
        self._db.set_read_options(_read_options())
        failure: Exception | None = None
        try:
            self._chain = CommitChain.of(self._links())
        except ValueError as error:
            failure = DamagedError(self._path, 0, str(error))
        except Exception as error:  # noqa: BLE001 - RocksDB's errors have no specific type
            failure = Exception(str(error))
        if failure is not None:
            # RocksDB's error is not chained: its traceback references the iterator, which keeps the database locked.
            self._db.close()
            self._db = None
            raise failure

    def _links(self) -> Iterator[tuple[bytes, bytes]]:
        iterator = self._db.iter(_read_options())
        iterator.seek(LINKS_START)
        while pairs := _next_pairs(iterator, LINKS_END):
            yield from pairs

    def _close_database(self) -> None:
        if self._db is not None:
            if not self._read_only:
                self._db.flush()
            self._db.close()
            self._db = None

    def _get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._reopening:
            get = self._db.get
            return [get(key) for key in keys]

    def _seek_last(self, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        # No bound in the options: rocksdict encodes it as if keys were not raw, which hides keys that it should not.
        with self._reopening:
            iterator = self._db.iter(_read_options())
            iterator.seek_for_prev(key)
            if not iterator.valid():
                iterator.status()  # raises if damage ended the search
                return None
            found: bytes = iterator.key()
            return (found, iterator.value()) if found >= lower else None

    def _seek_first(self, start: bytes) -> Any:
        with self._reopening:
            iterator = self._db.iter(_read_options())
            iterator.seek(start)
            return iterator

    def _write(self, puts: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes], sync: bool) -> None:
        self._recover()
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        links, old_links = self._chain.next_write()
        for key, value in links:
            batch.put(key, value)
        for key in old_links:
            batch.delete(key)
        self._broken = True
        if self._chain.table_is_due():
            self._db.flush()
        # A read must not find a key absent that reappears after a crash. A put may be visible before it is durable.
        syncs_apart = sync and not deletes
        self._db.write(batch, _write_options(sync and not syncs_apart))
        if syncs_apart:
            self._sync_log()
        self._chain.written()
        self._broken = False

    def _sync_log(self) -> None:
        """Sync the write-ahead log. Other threads run meanwhile, while they wait for a write that syncs by itself."""
        try:
            self._db.flush_wal(True)
        except Exception as error:
            # Never DiskFullError, after which nothing may have changed: the write is visible, and in the log.
            raise StorageError(f"index {self._path}: the log cannot be synced: {error}") from error

    def _delete_range(self, start: bytes, end: bytes) -> None:
        self._recover()
        self._broken = True
        self._db.delete_range(start, end, _write_options(False))
        if start <= LINKS_START and end >= LINKS_END:
            self._chain.cleared()
        self._broken = False

    def _recover(self) -> None:
        """Reopen the database after a failed write: RocksDB then refuses all writes until its log is replayed."""
        if self._broken:
            with self._reopening:  # readers run on the other thread
                self._db.close()
                self._open_database()
            self._broken = False

    async def _run(self, pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(pool, functools.partial(_translated, work, self._path))


async def remove_database(path: str) -> None:
    """Remove a database's folder with its content, if it exists. The database must be closed. OSError."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="index-remove")
    try:
        if await asyncio.get_running_loop().run_in_executor(pool, os.path.isdir, path):
            await asyncio.get_running_loop().run_in_executor(pool, shutil.rmtree, path)
    finally:
        pool.shutdown(wait=False)


def _translated(work: Callable[[], T], path: str) -> T:
    """Translate RocksDB's errors, which are bare Exceptions whose text begins with the kind of the status."""
    try:
        return work()
    except StorageError:
        raise
    except Exception as error:
        text = str(error)
        if "No space left" in text or "NoSpace" in text or "Disk quota" in text:
            raise DiskFullError(f"index {path}: {text}") from error
        if any(part in text for part in ("Corruption", "checksum", "truncated", "No such file")):
            raise DamagedError(path, 0, text) from error
        raise StorageError(f"index {path}: {text}") from error


def _next_pairs(iterator: Any, end: bytes) -> list[tuple[bytes, bytes]]:
    pairs: list[tuple[bytes, bytes]] = []
    while len(pairs) < PAIRS_PER_HOP:
        if not iterator.valid():
            iterator.status()  # raises if damage ended the scan
            break
        key: bytes = iterator.key()
        if key >= end:
            break
        pairs.append((key, iterator.value()))
        iterator.next()
    return pairs


def _read_options() -> Any:
    options = rocksdict.ReadOptions()
    options.set_verify_checksums(True)
    return options


def _write_options(sync: bool) -> Any:
    options = rocksdict.WriteOptions()
    options.sync = sync
    return options


def _outcomes(works: Sequence[Callable[[], Any]], path: str) -> list[Any]:
    """Return the result of each read, or its error: one damaged key fails only its own read."""
    outcomes: list[Any] = []
    for work in works:
        try:
            outcomes.append(_translated(work, path))
        except StorageError as error:
            outcomes.append(error)
    return outcomes


def _nothing() -> None:
    """Do nothing, to wait until earlier work of a thread is done."""
