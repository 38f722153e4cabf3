"""Provides the state of a ledger to requests: at once if it is in memory, otherwise in order once it is loaded.

Owns the requests that wait for a state, and the creation of ledgers with the logging of their keys. Never answers a
request, and never lets one overtake another of the same ledger while its state is being loaded.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from quire_bookie.errors import StorageError
from quire_bookie.model import LedgerId
from quire_bookie.server.requests.ports import Done, JournalPort, StoragePort
from quire_bookie.server.settings import BookieStats
from quire_bookie.storage.ledgers.ledger_states import LedgerInfo
from quire_bookie.wire.status import Status, status_of

_log = logging.getLogger("quire.server.ledger_loading")
_LEDGERS_AT_ONCE: Final = 128
"""New ledgers found by one read, whose waiting requests run in one step of the loop."""

LedgerAction = Callable[[LedgerInfo | None], None]
"""Called with the state of a ledger; None: the bookie provably never had it, or may have lost it (limbo)."""


class LedgerLoading:
    """Loads states of ledgers, creates ledgers, and logs their keys."""

    def __init__(self, journal: JournalPort, storage: StoragePort, stats: BookieStats) -> None:
        self._journal = journal
        self._storage = storage
        self._stats = stats
        self.under_way: dict[LedgerId, list[tuple[LedgerAction, Callable[[Status], None]]]] = {}
        """Waiting actions by ledger, in the order of their arrival."""
        self._wanted: list[LedgerId] = []
        """Ledgers that were asked for in this loop iteration."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.unlogged_keys: dict[LedgerId, tuple[bytes, bytes]] = {}
        """Keys and tokens for which the journal had no space."""

    def with_ledger(self, ledger: LedgerId, action: LedgerAction, fail: Callable[[Status], None]) -> None:
        """Run `action` with the ledger's state: now if it is known, otherwise in order once it is loaded."""
        waiting = self.under_way.get(ledger)
        if waiting is not None:
            waiting.append((action, fail))
            return
        info = self._storage.cached_ledger(ledger)
        if info is not None or self._storage.is_unseen(ledger):
            action(info)
            return
        self.under_way[ledger] = [(action, fail)]
        if not self._wanted:
            self._spawn(self._load_wanted(), "load ledgers")
        self._wanted.append(ledger)

    def revive(self, ledger: LedgerId, master_key: bytes, action: LedgerAction, fail: Callable[[Status], None]) -> None:
        """As `with_ledger`, once a deleted superfluous copy is durably revived, or proved not to be one."""
        self.after(ledger, partial(self._revive, ledger, master_key), action, fail)

    async def _revive(self, ledger: LedgerId, master_key: bytes) -> None:
        if await self._storage.revive_copy(ledger, master_key):
            self._stats.ledgers_revived += 1

    def after(
        self,
        ledger: LedgerId,
        work: Callable[[], Coroutine[Any, Any, None]],
        action: LedgerAction,
        fail: Callable[[Status], None],
    ) -> None:
        """As `with_ledger`, once `work` is done. `work` may raise StorageError or OSError.

        If another load of the ledger is under way, `work` is skipped, and `action` must handle that.
        """
        waiting = self.under_way.get(ledger)
        if waiting is not None:
            waiting.append((action, fail))
            return
        self.under_way[ledger] = [(action, fail)]
        self._spawn(self._load(ledger, work), f"load ledger {ledger}")

    def _spawn(self, step: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(step, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _load_wanted(self) -> None:
        """Look for new ledgers among those of one loop iteration, a task for each part; load the others one by one."""
        wanted, self._wanted = self._wanted, []
        for start in range(_LEDGERS_AT_ONCE, len(wanted), _LEDGERS_AT_ONCE):
            self._spawn(self._load_part(wanted[start : start + _LEDGERS_AT_ONCE]), "load ledgers")
        await self._load_part(wanted[:_LEDGERS_AT_ONCE])

    async def _load_part(self, ledgers: Sequence[LedgerId]) -> None:
        if len(ledgers) == 1:
            await self._load(ledgers[0], None)
            return
        absent: set[LedgerId] | None = None
        try:
            absent = await self._storage.absent_of(ledgers)
        except (StorageError, OSError) as error:
            absent = set()  # loaded one by one, each reports its own error
            _log.debug("could not look for %d ledgers together: %s", len(ledgers), error)
        finally:
            if absent is None:
                for ledger in ledgers:
                    self._run_waiting(ledger, None, Status.IO_ERROR)
        for ledger in ledgers:
            if ledger in absent:
                self._run_waiting(ledger, None, None)
            else:
                self._spawn(self._load(ledger, None), f"load ledger {ledger}")

    async def close(self) -> None:
        """Stop loading. Waiting requests are not answered."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _load(self, ledger: LedgerId, work: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Load a state, then run the waiting actions in one step."""
        failure: Status | None = Status.IO_ERROR
        info: LedgerInfo | None = None
        try:
            if work is not None:
                await work()
            info = await self._storage.load_ledger(ledger)
            failure = None
        except (StorageError, OSError) as error:
            failure = status_of(error)
            _log.error("could not read the state of ledger %d: %s", ledger, error)
        finally:
            self._run_waiting(ledger, info, failure)

    def _run_waiting(self, ledger: LedgerId, info: LedgerInfo | None, failure: Status | None) -> None:
        """Run the actions that wait for a ledger, or fail them."""
        waiting = self.under_way.pop(ledger)
        for at, (action, fail) in enumerate(waiting):
            if failure is not None:
                fail(failure)
                continue
            # An earlier action of this very loop may have created the ledger.
            info = info or self._storage.cached_ledger(ledger)
            action(info)
            if (begun := self.under_way.get(ledger)) is not None:
                begun += waiting[at + 1 :]  # the action waits again: the others stay behind it
                break

    # ---- creation
    def create(self, ledger: LedgerId, master_key: bytes) -> LedgerInfo:
        """Create a ledger and queue its key to the journal; only from a `LedgerAction` that got None."""
        info = self._storage.create_ledger(ledger, master_key)
        self._log_key(ledger, master_key, b"")
        self._stats.ledgers_created += 1
        return info

    def bind(self, ledger: LedgerId, info: LedgerInfo | None, master_key: bytes, token: bytes, done: Done) -> None:
        """Store the token of a ledger that has none or the same one; call `done` once it is durable.

        `info` None creates the ledger; only from a `LedgerAction` that got None.
        """
        if info is None:
            info = self._storage.create_ledger(ledger, master_key)
            self._stats.ledgers_created += 1
        if not info.token:
            self._storage.set_token(info, token)
        self._log_key(ledger, master_key, token, done)

    def log_key_again(self, ledger: LedgerId) -> bool:
        """Queue a key that is missing in the journal. True: it was missing, and the caller must queue its record again.

        The key's group was refused and a later one got space. Replay drops records that precede their ledger's key, so
        only the copy after the key counts. `done` callbacks run in the order of the records, so each record that does
        not follow a durable key finds its ledger here.
        """
        unlogged = self.unlogged_keys.get(ledger)
        if unlogged is None:
            return False
        self._log_key(ledger, *unlogged)
        return True

    def _log_key(self, ledger: LedgerId, master_key: bytes, token: bytes, done: Done | None = None) -> None:
        logged = partial(self._key_logged, ledger, master_key, token, done)
        self._journal.append_master_key(ledger, master_key, logged, token=token)

    def _key_logged(
        self, ledger: LedgerId, master_key: bytes, token: bytes, done: Done | None, error: BaseException | None
    ) -> None:
        """Keep a refused key: it is logged again before any record that needs it is acknowledged."""
        if error is not None:
            self.unlogged_keys[ledger] = master_key, token
        elif token or not self.unlogged_keys.get(ledger, (b"", b""))[1]:
            self.unlogged_keys.pop(ledger, None)  # a key without the token does not replace a refused token
        if done is not None:
            done(error)


def wrong_key_status(info: LedgerInfo) -> Status:
    """Return the status for a wrong key. If the ledger's own key was lost, no key can be proved wrong."""
    return Status.UNKNOWN_LEDGER_STATE if info.key_unknown else Status.UNAUTHORIZED
