"""Broken variants: rules of brokers that take a bundle from each other, each removed."""

from collections.abc import Callable, Sequence
from typing import Any

from quire_bookie.errors import BadVersionError
from quire_bookie.metadata.joint_write import Transact
from quire_bookie.metadata.store import Check, Node, Operation, Read
from quire_bookie.model import LedgerId
from quire_broker.managed_ledger.appending.ledger_maker import ClosedCounts, LedgerMaker
from quire_broker.managed_ledger.managed_ledger import ManagedLedger
from quire_broker.managed_ledger.nodes.stored_node import StoredNode
from quire_broker.managed_ledger.preparation import Preparation
from quire_broker.managed_ledger.stored_passwords import to_read
from quire_broker.ownership.claims import BundleClaim
from quire_broker.ownership.owners import Bundle, Owners
from tests.sim.broken.variant import Variant, replaced


def _opened_without_recovery() -> tuple[Any, ...]:
    async def broken(self: LedgerMaker, ledger_id: int) -> ClosedCounts:
        reader = await self._client.open_ledger(
            LedgerId(ledger_id), password=self._settings.password, recover=False, accept_stored=to_read
        )
        counts = ClosedCounts(reader.last_add_confirmed + 1, reader.length)
        await reader.close()
        return counts

    return (replaced(LedgerMaker, "recover", broken),)


def _list_written_without_compare() -> tuple[Any, ...]:
    proper: Callable[..., Any] = StoredNode.write

    async def broken(
        self: StoredNode,
        value: bytes,
        also: Sequence[Operation] = (),
        checks: Sequence[Check] = (),
        reads: Sequence[Read] = (),
        transact: Transact | None = None,
    ) -> Any:
        while True:
            try:
                return await proper(self, value, also, checks, reads, transact)
            except BadVersionError:
                await self.load()

    async def owned(*_: object) -> bool:
        return True

    return (replaced(StoredNode, "write", broken), replaced(LedgerMaker, "_proved", owned))


def _retaken_without_a_look() -> tuple[Any, ...]:
    async def broken(self: ManagedLedger) -> None:
        """Skip the check for another owner in between."""

    return (replaced(ManagedLedger, "check_owner", broken),)


def _nodes_not_followed() -> tuple[Any, ...]:
    async def broken(self: Owners) -> None:
        """Skip watching: the loss of a node may stay unnoticed."""

    return (replaced(Owners, "follow", broken),)


def _opened_without_reading_the_node() -> tuple[Any, ...]:
    async def broken(self: Owners, bundle: Bundle) -> int:
        return self.tenure(bundle)

    def unread(self: BundleClaim, node: Node | None) -> None:
        self.is_confirmed = self.tenure != 0

    return (replaced(Owners, "confirmed_tenure", broken), replaced(BundleClaim, "check", unread))


def _prepared_ledger_unchecked() -> tuple[Any, ...]:
    return (
        replaced(Preparation, "checks", property(lambda _: [])),
        replaced(Preparation, "follows", lambda *_: True),
    )


OWNERSHIP_RULES = (
    Variant("owners do not watch their nodes", "ownership", 12, _nodes_not_followed),
    Variant("the new owner opens without recovery", "ownership", 2, _opened_without_recovery),
    Variant("the old owner opens again without compare", "ownership", 215, _list_written_without_compare),
    Variant("a bundle taken again without a look at its ledgers", "ownership", 311, _retaken_without_a_look),
    Variant("opened without reading who owns the bundle", "ownership", 220, _opened_without_reading_the_node),
    Variant("a bundle that was handed over is opened without recovery", "handover", 2, _opened_without_recovery),
    Variant("a prepared ledger is used without a look at it", "handover", 25, _prepared_ledger_unchecked),
)
