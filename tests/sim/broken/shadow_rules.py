"""Broken variants: rules of shadows, which follow the ledgers of their source, each removed."""

from typing import Any

from quire_bookie.errors import LedgerError, MetadataError
from quire_broker.managed_ledger.shadow import SourceLedgers
from tests.sim.broken.variant import Variant, replaced


def _a_change_is_read_once() -> tuple[Any, ...]:
    async def broken(self: SourceLedgers) -> None:
        try:
            await self._refresh()
        except (LedgerError, MetadataError):
            return

    return (replaced(SourceLedgers, "_at_last", broken),)


def _acknowledged_entries_not_known() -> tuple[Any, ...]:
    return (replaced(SourceLedgers, "acknowledged", lambda *_: None),)


SHADOW_RULES = (
    Variant("a shadow that cannot read a change of its source never does", "shadow", 73, _a_change_is_read_once),
    Variant(
        "a shadow drops acknowledgments of entries that it does not know yet",
        "shadow",
        32,
        _acknowledged_entries_not_known,
    ),
)
