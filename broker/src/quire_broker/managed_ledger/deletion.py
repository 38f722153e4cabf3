"""Deletes ledgers that are no longer referenced, and retries until they are gone.

A ledger first leaves the list (or its cursor's node) and is deleted afterwards. The transaction that removes it also
creates a record under `/quire/unreferenced-ledgers/<managed ledger>/<ledger>`, which is removed once the ledger is
gone. The next owner that opens the managed ledger thus finds what a crash left behind. A record is only written
together with the removal, or for a new ledger before it is used (`preparation`), so any client may delete its ledger:
it claims the record first, which changes its version. The transaction that puts a prepared ledger into use checks that
its record is unclaimed and removes it, so a ledger is either used or deleted.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from quire_bookie.env.background import Background
from quire_bookie.env.backoff import Backoff
from quire_bookie.env.chance import Chance
from quire_bookie.errors import BadVersionError, LedgerError, MetadataError, NodeMissingError, NoSuchLedgerError
from quire_bookie.metadata.store import Check, Delete, MetadataStore, Node, Put, Under
from quire_bookie.model import LedgerId
from quire_broker.limits import LEDGERS_RECORDED_AT_ONCE, RECORDS_READ_MAX
from quire_broker.managed_ledger.ledger_port import Ledgers

_log = logging.getLogger("quire.managed_ledger")
_ROOT = "/quire/unreferenced-ledgers"
_UNCLAIMED = 0
"""Version of a record that only its creation has written."""


class Deletions:
    """Runs the ledger deletions of one managed ledger. `pending`: ledgers not yet deleted."""

    def __init__(
        self,
        name: str,
        client: Ledgers,
        store: MetadataStore,
        background: Background,
        chance: Chance,
        backoff_s: tuple[float, float],
    ) -> None:
        self._base = f"{_ROOT}/{name}"
        self._client = client
        self._store = store
        self._background = background
        self._chance = chance
        self._backoff_s = backoff_s
        self.pending: set[int] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def record(self, ledger_ids: Iterable[int]) -> list[Put]:
        """Return the operations that must be in the transaction that removes these ledgers from use."""
        return [Put(self._path(ledger_id), b"") for ledger_id in ledger_ids]

    async def record_now(self, ledger_ids: Sequence[int], checks: Sequence[Check]) -> None:
        """Record ledgers, and delete them, while a node that is about to be deleted still names them.

        Only for ledgers that may be lost, as the buckets of delayed entries. Errors of the store.
        """
        for first in range(0, len(ledger_ids), LEDGERS_RECORDED_AT_ONCE):
            some = ledger_ids[first : first + LEDGERS_RECORDED_AT_ONCE]
            await self._store.transact(checks, self.record(some))
            self.begin(some)

    def unclaimed(self, ledger_id: int) -> Check:
        """Return the check that no client has claimed a ledger, for the transaction that puts it into use."""
        return Check(self._path(ledger_id), _UNCLAIMED)

    def withdraw(self, ledger_id: int) -> Delete:
        """Return the operation that removes the record of a ledger, in the same transaction as `unclaimed`."""
        return Delete(self._path(ledger_id))

    def _path(self, ledger_id: int) -> str:
        return f"{self._base}/{ledger_id}"

    def begin(self, ledger_ids: Iterable[int]) -> None:
        """Delete the ledgers in the background, with retries. Call it only after that transaction."""
        fresh = [ledger_id for ledger_id in ledger_ids if ledger_id not in self.pending]
        if fresh:
            self.pending.update(fresh)
            self._idle.clear()
            self._background.spawn(self._delete_all(fresh), f"deletion of ledgers {fresh}")

    @property
    def records(self) -> Under:
        """The read of the records; one more than are handled at once."""
        return Under(f"{self._base}/", RECORDS_READ_MAX + 1)

    async def resume(self, records: Sequence[Node] | None = None) -> None:
        """Continue the deletions that an earlier owner left unfinished. `records`: if all were just read."""
        if records is None:
            names = await self._store.children(self._base)
        else:
            names = [record.key.removeprefix(f"{self._base}/") for record in records]
        self.begin(int(name) for name in names if name.isdecimal())

    async def _delete_all(self, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            await self._delete_until_gone(ledger_id)
            self.pending.discard(ledger_id)
        if not self.pending:
            self._idle.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait until everything is deleted, for at most `timeout_s`. The records keep the remaining ledgers."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            _log.info("%d ledgers are not deleted yet, the next owner deletes them", len(self.pending))

    async def _delete_until_gone(self, ledger_id: int) -> None:
        backoff = Backoff(self._backoff_s, self._chance)
        while True:
            try:
                await self.delete_now(ledger_id)
                return
            except (LedgerError, MetadataError) as error:
                _log.debug("could not delete ledger %d yet: %s", ledger_id, error)
                await backoff.wait()

    async def delete_now(self, ledger_id: int) -> None:
        """Try once to delete the ledger, then its record. Does nothing without a record: it is deleted, or in use."""
        if not await self._claim(ledger_id):
            return
        try:
            await self._client.delete_ledger(LedgerId(ledger_id))
        except NoSuchLedgerError:
            _log.debug("ledger %d was already deleted", ledger_id)
        try:
            await self._store.delete(self._path(ledger_id))
        except NodeMissingError:
            return

    async def _claim(self, ledger_id: int) -> bool:
        """Change the version of the record, so that the ledger is not put into use. Return whether there is one."""
        path, version = self._path(ledger_id), _UNCLAIMED
        while True:
            try:
                await self._store.transact([Check(path, version)], [Put(path, b"")])
                return True
            except BadVersionError:
                node = await self._store.get(path)
                if node is None:
                    return False
                version = node.version
