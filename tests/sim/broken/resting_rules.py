"""Broken variants: rules of the end of idle ledgers whose replicas are marked as missing, each removed."""

import asyncio
from typing import Any

from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.marked_ledgers import MarkedLedgers
from tests.sim.broken.variant import Variant, replaced


def _idle_ledgers_stay() -> tuple[Any, ...]:
    return (replaced(ManagedLedger, "may_end", lambda *_: False),)


def _idle_cursors_stay() -> tuple[Any, ...]:
    return (replaced(Cursor, "may_leave", lambda *_: False),)


def _marks_before_the_watch_ignored() -> tuple[Any, ...]:
    async def broken(self: MarkedLedgers) -> None:
        await asyncio.sleep(0)

    return (replaced(MarkedLedgers, "_list", broken),)


RESTING_RULES = (
    Variant("an idle ledger that is marked stays open", "resting", 0, _idle_ledgers_stay),
    Variant("an idle cursor stays in a ledger that is marked", "resting", 0, _idle_cursors_stay),
    Variant("marks in lost events are not listed", "resting", 4, _marks_before_the_watch_ignored),
)
