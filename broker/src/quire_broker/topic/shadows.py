"""Shadow topics: their creation, and their answer to publishers. A shadow topic shows the entries of another topic.

A plain shadow topic has its source in the properties of its managed ledger, a partitioned one in those of its record:
each partition shows the partition of the source with the same number.
"""

from collections.abc import Iterable, Mapping

from quire_broker.errors import ServerError
from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.managed_ledger.nodes.node_codec import SOURCE_PROPERTY
from quire_broker.names import TopicName, parse_topic
from quire_broker.policies.store import PolicyStore
from quire_broker.topic.producers import Producer, Refusal
from quire_broker.wire.frames import Send

SHADOWS = "shadow_topics"
"""Policy of a source: the names of its shadow topics. Its owner tells their brokers about new entries at once."""
_REFUSED = "Cannot send messages to a shadow topic"


def source_of(properties: Mapping[str, str]) -> TopicName | None:
    """Return the source of a topic with these properties; None: it is no shadow. InvalidTopicNameError."""
    source = properties.get(SOURCE_PROPERTY)
    return None if source is None else parse_topic(source)


async def create_partition(name: TopicName, factory: ManagedLedgerFactory, policies: PolicyStore) -> None:
    """Create the managed ledger of a partition of a shadow topic, unless it exists. Does nothing for other topics."""
    if name.partition < 0:
        return
    source = source_of(await policies.partitioned_properties(name.partitioned))
    if source is not None:
        await factory.create(name.ledger_name, {SOURCE_PROPERTY: str(source.partition_of(name.partition))})


def refuse_sends(producer: Producer, sends: Iterable[Send]) -> int:
    """Answer sends to a shadow topic with an error, as stock brokers do. Return how many."""
    count = 0
    for send in sends:
        count += 1
        highest = max(send.sequence_id, send.highest_sequence_id or 0)
        producer.answered(len(send.entry), Refusal(highest, ServerError.NOT_ALLOWED, _REFUSED))
    return count
