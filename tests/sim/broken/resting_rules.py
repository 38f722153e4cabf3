"""Broken variants: rules of the end of idle ledgers whose replicas are marked as missing, each removed."""

from typing import Any

from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from tests.sim.broken.variant import Variant, replaced


def _idle_ledgers_stay() -> tuple[Any, ...]:
    return (replaced(ManagedLedger, "may_end", lambda *_: False),)


def _idle_cursors_stay() -> tuple[Any, ...]:
    return (replaced(Cursor, "may_leave", lambda *_: False),)


RESTING_RULES = (
    Variant("an idle ledger that is marked stays open", "resting", 0, _idle_ledgers_stay),
    Variant("an idle cursor stays in a ledger that is marked", "resting", 0, _idle_cursors_stay),
)
