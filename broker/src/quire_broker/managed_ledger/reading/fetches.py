"""The fetches of one managed ledger in flight: readers that need entries of one join it instead of fetching again.

Several cursors at the same position are so served with one read of the bookies.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import field
from typing import Any

from quire_bookie.dataclass import dataclass
from quire_bookie.env.background import Background
from quire_bookie.errors import QuireError
from quire_broker.managed_ledger.errors import ManagedLedgerClosedError
from quire_broker.managed_ledger.ledger_port import Entry


@dataclass(slots=True, eq=False)
class Fetch:
    """One read of at least one entry: those from `first` to `last` that fit `bytes_max`."""

    ledger_id: int
    first: int
    last: int
    bytes_max: int
    far_behind: bool
    waiters: int = 0
    task: "asyncio.Task[Sequence[Entry]]" = field(init=False)


class Fetches:
    """Starts fetches and lets readers wait for them."""

    def __init__(self, background: Background, fetch: Callable[[Fetch], Coroutine[Any, Any, Sequence[Entry]]]) -> None:
        self._background = background
        self._fetch = fetch
        self._running: dict[int, list[Fetch]] = {}

    async def entries(
        self, ledger_id: int, first: int, last: int, bytes_max: int, *, far_behind: bool
    ) -> tuple[Sequence[Entry], bool]:
        """Return entries from `first` to at most `last`, as far as they fit `bytes_max`, at least one.

        Also return whether another reader had begun the fetch. ManagedLedgerClosedError; errors of the fetch.
        """
        while (running := self._covering(ledger_id, first, far_behind=far_behind)) is not None:
            skipped = first - running.first
            try:
                entries = await self._result(running)
            except QuireError as error:
                if not skipped or isinstance(error, ManagedLedgerClosedError):
                    raise
                break  # an entry before ours may be the reason
            if len(entries) > skipped:
                return _within(entries[skipped : skipped + last - first + 1], bytes_max), True
        fetch = Fetch(ledger_id, first, last, bytes_max, far_behind)
        running_here = self._running.setdefault(ledger_id, [])
        running_here.append(fetch)
        fetch.task = self._background.spawn(
            self._fetch(fetch), f"read of entries {first} to {last} of ledger {ledger_id}"
        )
        fetch.task.add_done_callback(lambda _: self._ended(fetch))
        return await self._result(fetch), False

    def _ended(self, fetch: Fetch) -> None:
        running = self._running[fetch.ledger_id]
        running.remove(fetch)
        if not running:
            del self._running[fetch.ledger_id]

    def _covering(self, ledger_id: int, entry: int, *, far_behind: bool) -> Fetch | None:
        """Return a fetch that may return this entry, and that waits for no turn if the reader is not far behind."""
        for fetch in self._running.get(ledger_id, ()):
            if fetch.first <= entry <= fetch.last and not fetch.task.done() and fetch.far_behind <= far_behind:
                return fetch
        return None

    @staticmethod
    async def _result(fetch: Fetch) -> Sequence[Entry]:
        fetch.waiters += 1
        try:
            # The cancellation of one waiter must not cancel the fetch for the others.
            await asyncio.wait([fetch.task])
        finally:
            fetch.waiters -= 1
        if fetch.task.cancelled():
            raise ManagedLedgerClosedError(f"the managed ledger was closed while its ledger {fetch.ledger_id} was read")
        return fetch.task.result()


def _within(entries: Sequence[Entry], bytes_max: int) -> Sequence[Entry]:
    """Return the first entries that fit, at least one."""
    size_bytes = 0
    for count, entry in enumerate(entries):
        size_bytes += len(entry.payload)
        if size_bytes > bytes_max and count:
            return entries[:count]
    return entries
