"""Broken variants: rules of Key_Shared, each removed."""

from typing import Any

from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.key_shared import KeySharedDispatcher, SlotHolders
from tests.sim.broken.variant import Variant, replaced


def _any_ready_consumer() -> tuple[Any, ...]:
    def broken(self: KeySharedDispatcher, slot: int, owner: Consumer | None, ready: set[Consumer]) -> Consumer | None:
        return owner if owner in ready else next((one for one in self.consumers if one in ready), None)

    return (replaced(KeySharedDispatcher, "_open_to", broken),)


def _holders_ignored() -> tuple[Any, ...]:
    def broken(*_: object) -> bool:
        return True

    return (replaced(SlotHolders, "free_for", broken),)


def _nothing_waits_behind() -> tuple[Any, ...]:
    def broken(*_: object) -> tuple[int, ...]:
        return ()

    return (replaced(KeySharedDispatcher, "_waiting_slots", broken),)


KEY_SHARED_RULES = (
    Variant("a key is given to two consumers", "keys", 4, _any_ready_consumer),
    Variant("a new consumer gets a key before its older messages are acknowledged", "keys", 4, _holders_ignored),
    Variant("new messages of a key overtake those that wait", "keys", 18, _nothing_waits_behind),
)
