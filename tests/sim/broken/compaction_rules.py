"""Broken variants: rules of the compaction of topics, each removed."""

from collections.abc import Mapping
from typing import Any

from quire_bookie.errors import LedgerError
from quire_bookie.model import LedgerId
from quire_broker.compaction.compacted_output import CompactedOutput
from quire_broker.managed_ledger.compacted_ledgers import CompactedLedgers
from quire_broker.managed_ledger.ledger_port import Writer
from tests.sim.broken.variant import Variant, replaced


def _unfinished_ledger_recorded() -> tuple[Any, ...]:
    proper = CompactedOutput._until

    async def broken(self: CompactedOutput, entry_id: int) -> None:
        try:
            await proper(self, entry_id)
        except LedgerError:
            self._writer.abandon()

    async def finish(self: CompactedOutput) -> None:
        if self._failure is None:
            await self._send()
            await self._until(self.entries - 1)
        if self._failure is None:
            await self._writer.close()

    return replaced(CompactedOutput, "_until", broken), replaced(CompactedOutput, "finish", finish)


def _former_ledger_deleted_first() -> tuple[Any, ...]:
    proper = CompactedLedgers.create

    async def broken(self: CompactedLedgers, custom: Mapping[str, bytes]) -> Writer:
        if self.current is not None:  # its entries stay readable through the open handle
            await self._context.client.delete_ledger(LedgerId(self.current.ledger_id))
        return await proper(self, custom)

    return (replaced(CompactedLedgers, "create", broken),)


COMPACTION_RULES = (
    Variant(
        "a compacted ledger is put into use although its writer failed", "compaction", 0, _unfinished_ledger_recorded
    ),
    Variant(
        "the former compacted ledger is deleted before the new one is used",
        "compaction",
        0,
        _former_ledger_deleted_first,
    ),
)
