"""Broken variants: rules of the closing of unused topics, each removed."""

from typing import Any

from quire_broker.managed_ledger.cursors.cursor import Cursor
from quire_broker.topic.topic import Topic
from tests.sim.broken.variant import Variant, replaced


def _clients_ignored() -> tuple[Any, ...]:
    return (replaced(Topic, "used", property(lambda _: False)),)


def _closed_without_saving() -> tuple[Any, ...]:
    async def broken(self: Cursor) -> None:
        self.stop()

    return (replaced(Cursor, "close", broken),)


UNUSED_RULES = (
    Variant("a topic counts as unused although a client is connected", "unused", 0, _clients_ignored),
    Variant("an unused topic is closed without saving its acknowledgements", "unused", 1, _closed_without_saving),
)
