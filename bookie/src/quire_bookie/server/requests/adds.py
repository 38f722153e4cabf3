"""Handles adds: their checks, the order of these, and the time of the response. The hot path of a bookie.

An add passes checks, write cache and journal queue without an await in between, so no state can change meanwhile: an
entry in the cache is also in the journal's queue, and a fence that was answered comes before or after an add, never in
its middle. No work is done per entry. The unit is the run, and for plain adds the batch of all runs that arrived in one
loop iteration: the batch has one put, one journal record and one completion.

An add with DEFERRED_SYNC is answered in the same step. Its record is journaled as any other; `forces` makes it durable.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from hmac import compare_digest
from typing import Final, TypeVar

from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.errors import DiskFullError, TooManyRequestsError
from quire_bookie.limits import FOREIGN_ADDS_LOG_S, MASTER_KEY_BYTES_MAX
from quire_bookie.model import EntryId, LedgerId, RunBatch, RunPiece, RunRow, row_bytes
from quire_bookie.server.requests.add_answers import AddAnswers
from quire_bookie.server.requests.condition import Condition
from quire_bookie.server.requests.connections import Connection
from quire_bookie.server.requests.forces import Forces
from quire_bookie.server.requests.ledger_loading import LedgerLoading, wrong_key_status
from quire_bookie.server.requests.long_polls import LongPolls
from quire_bookie.server.requests.overload import Overload
from quire_bookie.server.requests.ports import JournalPort, StoragePort
from quire_bookie.server.requests.repeated_adds import Held, RepeatedAdds, Verdict
from quire_bookie.server.requests.request_bound import ByteBound
from quire_bookie.server.settings import BookieStats
from quire_bookie.settings.service import ServiceSettings
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire import server_codec, server_v2
from quire_bookie.wire.messages import AddBatch, AddRequest, Status

_log = logging.getLogger("quire.server.adds")
T = TypeVar("T")
_GATHERED_BYTES_MAX: Final = 256 * 1024
"""Bytes gathered into one batch, unless one buffer is larger: more would waste space in chunks of the write cache."""
_LOADING_BYTES: Final = 4096
"""Charged to an add that waits for the state of its ledger, in addition to its entries: the task that loads it."""

_ALL_ENTRIES: Final = 1 << 63
"""Above every entry id."""


class Adds:
    """Puts adds into write cache and journal, and answers them."""

    def __init__(
        self,
        journal: JournalPort,
        storage: StoragePort,
        settings: ServiceSettings,
        stats: BookieStats,
        condition: Condition,
        loading: LedgerLoading,
        long_polls: LongPolls,
        forces: Forces,
        answers: AddAnswers,
        memory: ConnectionMemory,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[Connection, AddBatch]] = []
        self._gathered_bytes = 0
        self._append_run = journal.append_run
        self._append_batch = journal.append_batch
        self._start_journal = journal.start_now
        self._put = storage.put
        self._put_batch = storage.put_batch
        self._cached_ledger = storage.cached_ledger
        self._storage = storage
        self._settings = settings
        self._stats = stats
        self._condition = condition
        self._journal = journal
        self._repeats = RepeatedAdds(storage, loading)
        self._loading = loading
        self._under_way = loading.under_way
        self._answers = answers
        self._on_durable = self._durable
        self._watched = long_polls.watched
        self._long_polls = long_polls
        self._forces = forces
        self._overload = Overload(self._attempt, self._refuse, settings.backpressure_pause_s, memory)
        self._priority_in_flight_bytes = 0
        self._foreign_logged_s = float("-inf")
        self._held = ByteBound(settings.adds_in_flight_bytes_max, memory)
        """Adds that wait until the state of their ledger is loaded."""

    def retry(self) -> None:
        """Accept the waiting adds that now fit."""
        self._overload.retry()

    def send_answers(self) -> None:
        """Send the responses gathered in this loop iteration."""
        self._answers.send()

    def close(self) -> None:
        """Refuse the adds that wait for space."""
        self.settle()
        self._overload.close()

    def handle(self, connection: Connection, request: AddRequest) -> None:
        """Accept or refuse a run.

        The path of nearly every run is inlined here: for runs of one entry, calls cost more than the work itself.
        """
        run, condition = request.run, self._condition
        info = self._cached_ledger(run.ledger)
        if (
            info is None
            or info.fenced
            or request.recovery
            or request.high_priority
            or request.short
            or run.first < 0
            or run.first <= info.last_entry
            or condition.poison is not None
            or condition.read_only
            or self._overload.holds_back
            or run.ledger in self._under_way
            or self._stats.adds_in_flight_bytes >= self._settings.adds_in_flight_bytes_max
            or not compare_digest(info.master_key, request.master_key)
        ):
            self._handle_unusual(connection, request)
            return
        try:
            self._put(info, run)
        except TooManyRequestsError:
            self._add(connection, request, info)
        else:
            self._stats.adds_in_flight_bytes += run.size_bytes
            self._journal_run(connection, request, info)

    def gather(self, connection: Connection, request: AddBatch) -> None:
        """Accept or refuse these runs with all others of this loop iteration: at its end, or when `settle` is called.

        Handlers of other requests call `settle` first, so that no request overtakes an add.
        """
        if self._gathered_bytes + request.size_bytes > _GATHERED_BYTES_MAX:
            self.settle()
        if not self._gathered:
            self._loop.call_soon(self._end_turn)
        self._gathered.append((connection, request))
        self._gathered_bytes += request.size_bytes
        if self._gathered_bytes >= _GATHERED_BYTES_MAX:
            self.settle()

    def _end_turn(self) -> None:
        """Settle, and start the journal now: while reads run at full speed, a loop iteration takes milliseconds."""
        self.settle()
        self._start_journal()

    def settle(self) -> None:
        """Handle the gathered runs."""
        gathered = self._gathered
        if gathered:
            self._gathered, self._gathered_bytes = [], 0
            status = self._condition.refuses_add(high_priority=False)
            if status is not None:
                for connection, request in gathered:
                    self._refuse_rows(connection, request, request.rows, status)
            elif self._may_accept:
                self._add_together(gathered)
            else:
                for connection, request in gathered:
                    self._handle_rows(connection, request, request.rows)

    @property
    def _may_accept(self) -> bool:
        """Whether normal adds are accepted without waiting."""
        in_flight_bytes_max = self._settings.adds_in_flight_bytes_max
        return not self._overload.holds_back and self._stats.adds_in_flight_bytes < in_flight_bytes_max

    def _add_together(self, gathered: list[tuple[Connection, AddBatch]]) -> None:
        """Add the usual runs as one batch, refuse others together, then handle unusual runs one by one.

        A ledger does not change meanwhile, and a run after an unusual run of the same ledger counts as unusual too, so
        no run overtakes another of its ledger.
        """
        find, under_way = self._cached_ledger, self._under_way
        ends: dict[LedgerId, int] = {}
        infos: list[LedgerInfo] = []
        pieces: list[RunPiece] = []
        unusual: list[tuple[Connection, AddBatch, list[RunRow], dict[Status, list[RunRow]]]] = []
        entries = size_bytes = 0
        for connection, request in gathered:
            usual: list[RunRow] = []
            apart: list[RunRow] = []
            refused: dict[Status, list[RunRow]] = {}
            for row in request.rows:
                info = find(row[0])
                if info is None and row[1] >= 0 and self._may_create(row[0]):
                    info = self._loading.create(row[0], row[4])
                if row[0] < 0 or row[1] < 0:
                    refused.setdefault(Status.BAD_REQUEST, []).append(row)
                elif info is None or (under_way and row[0] in under_way):
                    apart.append(row)
                elif not compare_digest(info.master_key, row[4]):
                    refused.setdefault(wrong_key_status(info), []).append(row)
                elif row[1] <= ends.get(row[0], info.last_entry) and (row[1] == 0 or not info.fenced):
                    ends[row[0]] = _ALL_ENTRIES
                    apart.append(row)
                elif info.fenced:
                    refused.setdefault(Status.FENCED, []).append(row)
                else:
                    ends[row[0]] = row[1] + row[2] - 1
                    infos.append(info)
                    usual.append(row)
            if apart or refused:
                unusual.append((connection, request, apart, refused))
                entries += sum(row[2] for row in usual)
                size_bytes += sum(map(row_bytes, usual))
                pieces.append((request.records, usual))
            else:
                entries += request.entries
                size_bytes += request.size_bytes
                pieces.append((request.records, request.rows))
        if infos:
            assert entries >= len(infos) and len(pieces) == len(gathered), "each request has a piece, each row a ledger"
            self._take_batch(gathered, RunBatch(pieces, entries, size_bytes), infos)
        for connection, request, apart, refused in unusual:
            for status, rows in refused.items():
                self._refuse_rows(connection, request, rows, status)
            self._handle_rows(connection, request, apart)

    def _may_create(self, ledger: LedgerId) -> bool:
        """Whether a plain add to a ledger that is not in memory creates it now."""
        return (
            ledger >= 0
            and ledger not in self._under_way
            and self._storage.is_unseen(ledger)
            and not self._storage.is_limbo(ledger)
        )

    def _refuse_rows(self, connection: Connection, request: AddBatch, rows: list[RunRow], status: Status) -> None:
        count = sum(row[2] for row in rows)
        self._stats.adds_failed += count
        connection.send((server_v2.encode_rows(rows, request.header, status),), count)

    def _take_batch(
        self, gathered: list[tuple[Connection, AddBatch]], batch: RunBatch, infos: Sequence[LedgerInfo]
    ) -> None:
        try:
            self._put_batch(infos, batch)
        except TooManyRequestsError:
            for (connection, request), (_records, rows) in zip(gathered, batch.pieces, strict=True):
                self._handle_rows(connection, request, rows)
            return
        stats = self._stats
        stats.adds_in_flight_bytes += batch.size_bytes
        stats.add_runs += len(infos)
        stats.add_entries += batch.entries
        stats.add_bytes += batch.size_bytes
        if self._watched:
            for info in infos:
                self._long_polls.moved(info)
        self._append_batch(batch, partial(self._batch_durable, gathered))

    def _handle_rows(self, connection: Connection, request: AddBatch, rows: Sequence[RunRow]) -> None:
        for row in rows:
            self.handle(connection, request.request(row))

    def _batch_durable(
        self, gathered: list[tuple[Connection, AddBatch]], batch: RunBatch, error: BaseException | None
    ) -> None:
        """Answer a batch, which has one piece for each request, possibly with fewer rows."""
        if self._loading.unlogged_keys and error is None:
            again = {row[0] for row in batch.rows() if self._loading.log_key_again(row[0])}
            if again:
                later = batch.only(lambda row: row[0] in again)
                self._append_batch(later, partial(self._batch_durable, gathered))
                batch = batch.only(lambda row: row[0] not in again)
        self._stats.adds_in_flight_bytes -= batch.size_bytes
        assert self._stats.adds_in_flight_bytes >= 0, "what is released was charged"
        status = Status.OK
        if error is not None:
            status = self._condition.journal_failure(error)
            self._stats.adds_failed += batch.entries
        self._answers.send_batch(gathered, batch, status)

    def _handle_unusual(self, connection: Connection, request: AddRequest) -> None:
        """Handle a run off the fast path."""
        run = request.run
        status = self._condition.refuses_add(high_priority=request.high_priority)
        if status is not None:
            self._answer(connection, request, status)
        elif run.ledger < 0 or run.first < 0 or len(request.master_key) > MASTER_KEY_BYTES_MAX:
            self._answer(connection, request, Status.BAD_REQUEST)
        else:
            self._add_to_ledger(connection, request)

    def _add_to_ledger(self, connection: Connection, request: AddRequest) -> None:
        """Add now, or when the state of the ledger is loaded."""
        ledger = request.run.ledger
        add, refuse = partial(self._add, connection, request), partial(self._answer, connection, request)
        if ledger in self._under_way or self._cached_ledger(ledger) is None:
            held_bytes = request.run.size_bytes + _LOADING_BYTES
            self._held.count_in(connection, held_bytes)
            add, refuse = partial(self._loaded, held_bytes, add), partial(self._loaded, held_bytes, refuse)
        self._loading.with_ledger(ledger, add, refuse)

    def _loaded(self, held_bytes: int, then: Callable[[T], None], outcome: T) -> None:
        self._held.count_out(held_bytes)
        then(outcome)

    def _add(self, connection: Connection, request: AddRequest, info: LedgerInfo | None) -> None:
        if info is None:
            if not request.recovery and self._storage.is_limbo(request.run.ledger):
                self._answer(connection, request, Status.FENCED)
                return
            info = self._loading.create(request.run.ledger, request.master_key)
        if _revives(request, info):
            self._revive(connection, request)
        elif not compare_digest(info.master_key, request.master_key):
            self._answer(connection, request, wrong_key_status(info))
        elif request.short:
            self._answer(connection, request, Status.BAD_REQUEST)
        elif self._overload.offer(connection, request):
            self._stats.adds_paused += 1

    def _revive(self, connection: Connection, request: AddRequest) -> None:
        """Restore a deleted copy durably, then add: the cluster assigned the ledger to this bookie again."""
        held_bytes = request.run.size_bytes + _LOADING_BYTES
        self._held.count_in(connection, held_bytes)
        self._loading.revive(
            request.run.ledger,
            request.master_key,
            partial(self._loaded, held_bytes, partial(self._add, connection, request)),
            partial(self._loaded, held_bytes, partial(self._answer, connection, request)),
        )

    def _attempt(self, connection: Connection, request: AddRequest) -> bool:
        """Check the fence, put, queue to the journal, in one step. False: no space, and nothing changed."""
        run = request.run
        info = self._cached_ledger(run.ledger)
        if info is None:
            # The add waited so long for space that the state of its ledger was evicted.
            self._add_to_ledger(connection, request)
            return True
        if info.deleted and request.recovery:
            if _revives(request, info):
                self._revive(connection, request)
            else:
                self._answer(connection, request, Status.NO_LEDGER)
            return True
        if not request.recovery and self._refuses_normal_add(connection, request, info):
            return True
        status = self._condition.refuses_add(high_priority=request.high_priority)
        if status is not None:  # the bookie turned read-only while the add waited for space
            self._answer(connection, request, status)
            return True
        stats = self._stats
        if request.recovery or request.high_priority:
            if self._priority_in_flight_bytes >= self._settings.priority_adds_in_flight_bytes_max:
                return False
        elif stats.adds_in_flight_bytes >= self._settings.adds_in_flight_bytes_max:
            return False
        try:
            self._put(info, run)
        except TooManyRequestsError:
            return False
        if request.recovery or request.high_priority:
            self._priority_in_flight_bytes += run.size_bytes
        else:
            stats.adds_in_flight_bytes += run.size_bytes
        self._journal_run(connection, request, info)
        return True

    def _refuses_normal_add(self, connection: Connection, request: AddRequest, info: LedgerInfo) -> bool:
        """Whether the run was answered, or waits until its stored entries are read."""
        run = request.run
        if info.deleted and run.first == 0:
            # The first entry of a new ledger with the id of a deleted one, or a late repetition.
            self._answer(connection, request, Status.UNAUTHORIZED)
            return True
        compares = run.first <= info.last_entry and not info.deleted and (run.first == 0 or not info.fenced)
        if compares and request.compared != (info.rewrites, info.last_entry):
            return self._compare(connection, request, info, None)
        if info.fenced:
            self._answer(connection, request, Status.FENCED)
            return True
        return False

    def _compare(self, connection: Connection, request: AddRequest, info: LedgerInfo, held: Held | None) -> bool:
        """As `_refuses_normal_add`, for a run that begins at or below the last stored entry. See `repeated_adds`."""
        run = request.run
        verdict = self._repeats.compare(info, run, held)
        if verdict is Verdict.UNKNOWN:
            held_bytes = run.size_bytes + _LOADING_BYTES
            self._held.count_in(connection, held_bytes)
            as_of = info.rewrites, info.last_entry

            def compared(found: LedgerInfo | None, held: Held | None) -> None:
                self._held.count_out(held_bytes)
                if held is not None and found is not None and (found.rewrites, found.last_entry) == as_of:
                    if not self._compare(connection, request, found, held):
                        self._add(connection, request, found)
                else:
                    self._add(connection, request, found)  # entries were added or deleted meanwhile: compare again

            last = EntryId(min(info.last_entry, run.first + len(run.entries) - 1))
            self._repeats.read(
                run, last, compared, partial(self._loaded, held_bytes, partial(self._answer, connection, request))
            )
            return True
        if verdict is Verdict.FOREIGN:
            self._refuse_foreign(connection, request, info)
            return True
        request.compared = info.rewrites, info.last_entry
        if info.fenced:
            self._answer(connection, request, Status.FENCED)
        return info.fenced

    def _refuse_foreign(self, connection: Connection, request: AddRequest, info: LedgerInfo) -> None:
        self._stats.adds_foreign += len(request.run.entries)
        now_s = self._loop.time()
        if now_s - self._foreign_logged_s >= FOREIGN_ADDS_LOG_S:  # a client may repeat them at any rate
            self._foreign_logged_s = now_s
            _log.error(
                "refused entries from %d on of another ledger %d: this bookie already stores a ledger with that id; "
                "%d entries refused so far",
                request.run.first,
                info.ledger_id,
                self._stats.adds_foreign,
            )
        if not info.fenced:
            self._storage.fence(info)
            self._journal.append_fence(info.ledger_id, _note_fence)
        self._answer(connection, request, Status.UNAUTHORIZED)

    def _journal_run(self, connection: Connection, request: AddRequest, info: LedgerInfo) -> None:
        """Count, notify long polls, queue to the journal; in the step of the put."""
        run, stats = request.run, self._stats
        count = len(run.entries)
        stats.add_runs += 1
        stats.add_entries += count
        stats.add_bytes += run.size_bytes
        if self._watched:
            self._long_polls.moved(info)
        if request.recovery:
            stats.recovery_add_entries += count
        if request.deferred_sync:
            stats.deferred_add_entries += count
            self._append_run(run, partial(self._deferred_durable, request))
            self._answers.add(connection, request)
        else:
            self._append_run(run, partial(self._on_durable, connection, request))

    def _durable(self, connection: Connection, request: AddRequest, error: BaseException | None) -> None:
        if self._loading.unlogged_keys and error is None and self._loading.log_key_again(request.run.ledger):
            self._append_run(request.run, partial(self._on_durable, connection, request))
            return
        if request.recovery or request.high_priority:
            self._priority_in_flight_bytes -= request.run.size_bytes
        else:
            self._stats.adds_in_flight_bytes -= request.run.size_bytes
        if error is None:
            self._answers.add(connection, request)
        else:
            self._answer(connection, request, self._condition.journal_failure(error))

    def _deferred_durable(self, request: AddRequest, error: BaseException | None) -> None:
        """Release the budget of an add that was answered before; note a failure for `forces`."""
        if self._loading.unlogged_keys and error is None and self._loading.log_key_again(request.run.ledger):
            self._append_run(request.run, partial(self._deferred_durable, request))
            return
        if request.recovery or request.high_priority:
            self._priority_in_flight_bytes -= request.run.size_bytes
        else:
            self._stats.adds_in_flight_bytes -= request.run.size_bytes
        if error is not None:
            self._condition.journal_failure(error)
            if isinstance(error, DiskFullError):
                self._forces.deferred_add_refused()

    def _answer(self, connection: Connection, request: AddRequest, status: Status) -> None:
        count = len(request.run.entries)
        self._stats.adds_failed += count
        connection.send((server_codec.encode_adds(request, status),), count)

    def _refuse(self, connection: Connection, request: AddRequest) -> None:
        self._stats.adds_rejected += len(request.run.entries)
        self._answer(connection, request, Status.TOO_MANY_REQUESTS)


def _note_fence(error: BaseException | None) -> None:
    """Log a failed record. The fence still holds in this process, and the writer was refused and gives up."""
    if error is not None:
        _log.warning("could not journal the fence of a ledger whose id is used twice: %s", error)


def _revives(request: AddRequest, info: LedgerInfo) -> bool:
    """Whether this add revives a deleted ledger: it has the ledger's key, or the ledger's key was lost."""
    if not (request.recovery and info.deleted and info.superfluous):
        return False
    return info.key_unknown or compare_digest(info.master_key, request.master_key)
