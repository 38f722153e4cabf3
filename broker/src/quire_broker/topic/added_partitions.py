"""The subscriptions of partitions that were added to a topic: those of its first partition."""

from typing import Final

from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.managed_ledger.position import EARLIEST
from quire_broker.policies.store import PolicyStore
from quire_broker.topic.topic import Topic

_TAKEN: Final = "quire.subscriptions-taken"
"""Property of the managed ledger of an added partition that has received the subscriptions of the first partition."""


async def take_subscriptions(topic: Topic, factory: ManagedLedgerFactory, policies: PolicyStore) -> None:
    """Create the subscriptions of the first partition on an added one, so that they miss no message.

    Done before any client uses it, and repeated at each load until all exist.
    """
    name, ledger = topic.name, topic.ledger
    if name.partition < 1 or _TAKEN in ledger.properties or ledger.entries:
        return
    if not await policies.was_added(name):
        return
    first = await factory.stored(name.partitioned.partition_of(0).ledger_name)
    for subscription in () if first is None else first.cursors:
        await topic.subscription(subscription, create=True, initial=EARLIEST)
    await ledger.set_property(_TAKEN, "true")
