"""Reads the policies in force for a topic: its own, else the namespace's, else those of the broker's settings.

A partition has the policies of its topic.
"""

from collections.abc import Mapping

from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.names import NamespaceName, TopicName
from quire_broker.policies.defaults import with_defaults
from quire_broker.policies.of_topics import merged, own_policies
from quire_broker.policies.store import Json, PolicyStore


class RulesInForce:
    """Errors of the metadata store are passed on unchanged. Do not change a result."""

    def __init__(self, policies: PolicyStore, factory: ManagedLedgerFactory, defaults: Json) -> None:
        """`defaults`: the policies of namespaces that set none."""
        self._policies = policies
        self._factory = factory
        self._defaults = defaults

    async def of_namespace(self, name: NamespaceName, *, placed: bool = False) -> Json | None:
        """Return the policies of a namespace, None if it does not exist. `placed`: with its bookie affinity groups."""
        read = self._policies.with_placement if placed else self._policies.policies
        found = await read(name)
        return None if found is None else with_defaults(found, self._defaults)

    async def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned or does not exist."""
        return await self._policies.partitions(topic)

    async def over(self, namespace: Json, name: TopicName, properties: Mapping[str, str]) -> Json:
        """Return the policies of a topic with these stored properties over those of `of_namespace`."""
        if name.partition >= 0:
            properties = await self._policies.partitioned_properties(name.partitioned) or properties
        own = own_policies(properties)
        return merged(namespace, own, self._policies.cluster) if own else namespace

    async def of(self, name: TopicName, properties: Mapping[str, str] | None = None, *, placed: bool = False) -> Json:
        """Return the policies of a topic, which need not exist. `properties`: of a topic that is loaded.

        `placed`: with the bookie affinity groups of its namespace.
        """
        namespace = await self.of_namespace(name.namespace, placed=placed)
        if namespace is None:
            namespace = with_defaults({}, self._defaults)
        if properties is None:
            properties = await self._policies.partitioned_properties(name) if name.partition < 0 else {}
            if not properties and name.persistent and name.partition < 0:
                stored = await self._factory.stored(name.ledger_name)
                properties = {} if stored is None else stored.properties
        return await self.over(namespace, name, properties)
