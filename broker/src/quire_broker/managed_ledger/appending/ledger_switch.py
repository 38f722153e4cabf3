"""The states of the write side, and the steps of a switch from one ledger to the next.

    state      | next states                 | an append
    NO_LEDGER  | SWITCHING, OPEN, REFUSING   | starts a switch and waits
    OPEN       | SWITCHING, REFUSING         | is submitted
    SWITCHING  | OPEN, NO_LEDGER, REFUSING   | waits
    REFUSING   | none                        | fails

The order of the steps guarantees that no entry is in a ledger that the list does not contain: create the successor,
close the tail, store both in the list with one compare-and-set. Steps know nothing of pending appends.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final

from quire_bookie.env.background import Background
from quire_bookie.env.backoff import Backoff
from quire_bookie.env.clock import WallClock
from quire_bookie.errors import LedgerError, MetadataError, NoSuchLedgerError
from quire_broker.managed_ledger.appending.ledger_maker import Availability, ClosedCounts, LedgerMaker
from quire_broker.managed_ledger.appending.rollover import RollConditions, may_roll
from quire_broker.managed_ledger.appending.written_ledger import WrittenLedger
from quire_broker.managed_ledger.errors import ManagedLedgerFencedError
from quire_broker.managed_ledger.ledger_port import Writer
from quire_broker.managed_ledger.list_store import ListStore
from quire_broker.managed_ledger.nodes.ledger_list import LedgerRecord
from quire_broker.managed_ledger.nodes.node_codec import LedgerListNode
from quire_broker.settings.managed_ledger import ManagedLedgerSettings

_log = logging.getLogger("quire.managed_ledger")

_STEADY_S = 10.0  # if a ledger fails sooner than this, the creation of its successor is delayed


class AppendState(Enum):
    """How the write side treats an append in its present state."""

    OPEN = "open"
    SWITCHING = "switching"
    NO_LEDGER = "no ledger"
    REFUSING = "refusing"


NEXT: Final = {
    AppendState.NO_LEDGER: frozenset({AppendState.SWITCHING, AppendState.OPEN, AppendState.REFUSING}),
    AppendState.OPEN: frozenset({AppendState.SWITCHING, AppendState.REFUSING}),
    AppendState.SWITCHING: frozenset({AppendState.OPEN, AppendState.NO_LEDGER, AppendState.REFUSING}),
    AppendState.REFUSING: frozenset[AppendState](),
}
"""The states that may follow each state, apart from itself."""


def next_state(present: AppendState, wanted: AppendState) -> AppendState:
    """Return the state after `present`: the wanted one, except that refusing appends is final."""
    if present is AppendState.REFUSING or wanted is present:
        return present
    assert wanted in NEXT[present], f"{present} is never followed by {wanted}"
    return wanted


class SwitchPacing:
    """Decides when a successor may be created: not while it cannot succeed, and not too often."""

    def __init__(self, settings: ManagedLedgerSettings, new_backoff: Callable[[], Backoff]) -> None:
        self._settings = settings
        self._new_backoff = new_backoff
        self._not_before_s = 0.0
        self._roll_backoff = new_backoff()
        self._failure_backoff = new_backoff()
        self._pause_s = 0.0

    def may_roll(self, now_s: float, conditions: RollConditions) -> bool:
        """Return whether a healthy ledger may get a successor now."""
        return now_s >= self._not_before_s and may_roll(conditions, self._settings)

    def not_created(self, now_s: float) -> None:
        """Delay the next attempt for a healthy ledger, because this one failed."""
        self._not_before_s = now_s + self._roll_backoff.grow()

    def switched(self) -> None:
        """Note that a switch succeeded."""
        self._roll_backoff = self._new_backoff()

    def ledger_failed(self, age_s: float) -> None:
        """Delay the successor of a ledger that failed young: a flapping bookie must not cause one every moment."""
        if age_s >= _STEADY_S:
            self._failure_backoff = self._new_backoff()
            self._pause_s = 0.0
        else:
            self._pause_s = self._failure_backoff.grow()

    def take_pause_s(self) -> float:
        """Return the delay before the successor of a failed ledger, once."""
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s


class SwitchSteps:
    """Creates successors, closes ledgers and stores both in the list."""

    def __init__(
        self,
        lists: ListStore,
        maker: LedgerMaker,
        availability: Availability,
        background: Background,
        clock: WallClock,
        new_backoff: Callable[[], Backoff],
    ) -> None:
        self._lists = lists
        self._maker = maker
        self._availability = availability
        self._background = background
        self._clock = clock
        self._new_backoff = new_backoff

    async def create(self) -> Writer:
        """Create a successor. Raises errors of the ledger client and of the metadata store."""
        return await self._maker.create()

    async def create_at_last(self) -> Writer:
        """Create a successor, however many attempts it takes. Appends wait meanwhile."""
        backoff = self._new_backoff()
        while True:
            try:
                return await self._maker.create()
            except (MetadataError, LedgerError) as error:
                _log.info("%s: no new ledger yet, appends wait: %s", self._lists.name, error)
                await backoff.wait()

    @property
    def obstacle(self) -> str:
        """Why enforced rules of placement did not allow the last ledger; else nothing."""
        return self._maker.obstacle

    async def discard(self, writer: Writer) -> None:
        """Delete a successor that the list does not contain."""
        await self._maker.discard(writer)

    async def close(self, ledger: WrittenLedger) -> ClosedCounts:
        """Close a ledger and return its final counts. ManagedLedgerFencedError: it is not ours any more."""
        ledger_id = ledger.writer.ledger_id
        try:
            counts = await self._maker.close(
                ledger.writer, self._new_backoff(), failure=ledger.failure, owned=self._lists.still_owned
            )
        except NoSuchLedgerError as error:
            raise ManagedLedgerFencedError(f"{self._lists.name}: ledger {ledger_id} was deleted") from error
        known = self._lists.ledgers.entries_in(ledger_id)
        if counts.entries < known:
            _log.critical(
                "%s: ledger %d was closed with %d entries, %d had been acknowledged",
                self._lists.name, ledger_id, counts.entries, known,
            )  # fmt: skip
            raise ManagedLedgerFencedError(f"{self._lists.name}: ledger {ledger_id} lost acknowledged entries")
        return counts

    async def enlist(self, counts: ClosedCounts | None, successor: Writer) -> None:
        """Store the successor in the list, with the final counts of the ledger before it."""
        tail = self._lists.ledgers.tail
        closed_ms = self._clock.now_ms()
        dropped = [tail] if tail is not None and counts is not None and counts.entries == 0 else []

        def change(node: LedgerListNode) -> LedgerListNode:
            records = [
                record.closed(counts.entries, counts.size_bytes, closed_ms)
                if record.ledger_id == tail and counts is not None
                else record
                for record in node.ledgers
                if record.ledger_id not in dropped
            ]
            return replace(node, ledgers=(*records, LedgerRecord(successor.ledger_id)))

        backoff = self._new_backoff()
        while True:
            try:
                await self._lists.update(change, tail=lambda: successor.ledger_id, dropped=dropped)
                return
            except ManagedLedgerFencedError:
                self._background.spawn(self._maker.discard(successor), "deletion of a ledger that could not be listed")
                raise
            except MetadataError as error:
                self._availability.note(error)
                await backoff.wait()
