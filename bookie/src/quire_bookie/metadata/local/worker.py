"""Runs the thread that owns the database. Groups queued writes into one commit; never runs on the event loop.

Reads of a batch run first and are answered at once: they are concurrent with its writes. The writes share one
transaction; their results, and then the events, are passed to the event loop in one call after the commit.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import MetadataUnavailableError, MetadataUnknownError, QuireError
from quire_bookie.metadata.local.database import Database
from quire_bookie.metadata.local.opening import open_database
from quire_bookie.metadata.local.space import MetadataReserve
from quire_bookie.metadata.store import Event, MetadataStats

_log = logging.getLogger("quire.metadata.local")
_GROUP_JOBS_MAX = 512
T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    run: Callable[[Database], Any]
    answer: "asyncio.Future[Any]"
    write: bool


@dataclass(slots=True)
class _Outcome:
    job: _Job
    result: Any = None
    error: BaseException | None = None


class DatabaseThread:
    """Runs functions on the database in a separate thread."""

    def __init__(self, on_events: Callable[[list[Event]], None], stats: MetadataStats) -> None:
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._on_events = on_events
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    async def start(self, folder: Path) -> None:
        """Open the database. StartupError."""
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, args=(folder, opened), name="quire-metadata", daemon=True)
        self._thread.start()
        await asyncio.wrap_future(opened)

    async def read(self, run: Callable[[Database], T]) -> T:
        """Run a function that only reads. MetadataUnavailableError."""
        return await self._submit(run, write=False)

    async def write(self, run: Callable[[Database], T]) -> T:
        """Run a function that writes; durable on return. If the caller is cancelled, the write may still happen."""
        return await self._submit(run, write=True)

    async def stop(self) -> None:
        """Finish the queued work, close the database, end the thread."""
        if self._closed:
            return
        self._closed = True
        self._jobs.put(None)
        if self._thread is not None:
            # The thread only finishes queued work; it never waits for the loop.
            await self._loop.run_in_executor(None, self._thread.join)

    async def _submit(self, run: Callable[[Database], T], *, write: bool) -> T:
        if self._closed:
            raise MetadataUnavailableError("the metadata store is closed")
        answer: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(run, answer, write))
        return await answer

    def _main(self, folder: Path, opened: "Future[None]") -> None:
        try:
            reserve = MetadataReserve(folder)
            reserve.before_commit()
            database = open_database(folder)
        except (QuireError, OSError) as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        try:
            while (batch := self._next_batch(database)) is not None:
                if any(job.write for job in batch):
                    reserve.before_commit()
                self._run_batch(database, batch)
                database.tidy()
        except Exception:  # noqa: BLE001  root of the thread: no caller may keep waiting for it
            _log.exception("the thread of the metadata store failed")
            self._closed = True
            self._fail_queued()
        finally:
            database.close()

    def _next_batch(self, database: Database) -> list[_Job] | None:
        """Return all queued jobs, at least one; None once the queue ends."""
        while self._jobs.empty() and database.tidy():
            pass
        job = self._jobs.get()
        if job is None:
            return None
        batch = [job]
        while len(batch) < _GROUP_JOBS_MAX and not self._jobs.empty():
            job = self._jobs.get()
            if job is None:
                self._jobs.put(None)  # the end comes after this batch
                break
            batch.append(job)
        return batch

    def _run_batch(self, database: Database, batch: list[_Job]) -> None:
        self._stats.calls += len(batch)
        reads = [self._run(database, job) for job in batch if not job.write]
        if reads:
            self._deliver(reads, [])
        writes = [job for job in batch if job.write]
        if writes:
            outcomes, events = self._run_group(database, writes)
            self._deliver(outcomes, events)

    def _run(self, database: Database, job: _Job) -> _Outcome:
        try:
            return _Outcome(job, job.run(database))
        except QuireError as error:
            return _Outcome(job, error=error)
        except Exception as error:  # noqa: BLE001  root of the job: return the error, roll the group back
            unavailable = MetadataUnavailableError(f"the metadata store failed: {error!r}")
            unavailable.__cause__ = error
            return _Outcome(job, error=unavailable)

    def _run_group(self, database: Database, jobs: list[_Job]) -> tuple[list[_Outcome], list[Event]]:
        """Run one transaction. A job that loses its compare-and-set has written nothing and fails alone."""
        outcomes: list[_Outcome] = []
        try:
            database.begin()
            for job in jobs:
                outcome = self._run(database, job)
                if isinstance(outcome.error, MetadataUnavailableError):
                    # SQLite failed in the middle: no write of this group is kept.
                    database.rollback()
                    return [_Outcome(each, error=outcome.error) for each in jobs], []
                outcomes.append(outcome)
            database.prepare()
        except (sqlite3.Error, OSError) as error:
            database.rollback()
            unavailable = MetadataUnavailableError(f"the transaction failed, nothing was written: {error}")
            return [_Outcome(each, error=unavailable) for each in jobs], []
        try:
            events = database.commit()
        except sqlite3.Error as error:
            database.rollback()
            self._stats.unknown_writes += len(jobs)
            unknown = MetadataUnknownError(f"the commit failed, its outcome is unknown: {error}")
            return [_Outcome(each, error=unknown) for each in jobs], []
        try:
            database.log()
        except OSError as error:
            self._stats.unknown_writes += len(jobs)
            unknown = MetadataUnknownError(f"the change log failed, the outcome of the commit is unknown: {error}")
            return [_Outcome(each, error=unknown) for each in jobs], events
        assert len(outcomes) == len(jobs), "each job has its outcome"
        self._stats.commits += 1
        self._stats.writes += len(jobs)
        return outcomes, events

    def _deliver(self, outcomes: list[_Outcome], events: list[Event]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._answer, outcomes, events)
        except RuntimeError:
            _log.info("the event loop ended before the metadata store was closed")

    def _answer(self, outcomes: list[_Outcome], events: list[Event]) -> None:
        for outcome in outcomes:
            answer = outcome.job.answer
            if answer.done():
                continue  # its caller was cancelled
            if outcome.error is not None:
                answer.set_exception(outcome.error)
            else:
                answer.set_result(outcome.result)
        if events:
            self._on_events(events)

    def _fail_queued(self) -> None:
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                self._deliver([_Outcome(job, error=MetadataUnavailableError("the metadata store failed"))], [])
