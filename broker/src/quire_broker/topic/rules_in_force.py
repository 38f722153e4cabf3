"""Reads the policies in force for a topic: its own, for a partition those of its topic, over the namespace's."""

from collections.abc import Mapping

from quire_broker.managed_ledger.factory import ManagedLedgerFactory
from quire_broker.names import TopicName
from quire_broker.policies.of_topics import merged, own_policies
from quire_broker.policies.store import Json, PolicyStore


class RulesInForce:
    """Errors of the metadata store are passed on unchanged. Do not change a result."""

    def __init__(self, policies: PolicyStore, factory: ManagedLedgerFactory) -> None:
        self._policies = policies
        self._factory = factory

    async def over(self, namespace: Json, name: TopicName, properties: Mapping[str, str]) -> Json:
        """Return the policies of a topic with these stored properties over those of its namespace."""
        if name.partition >= 0:
            properties = await self._policies.partitioned_properties(name.partitioned) or properties
        own = own_policies(properties)
        return merged(namespace, own, self._policies.cluster) if own else namespace

    async def of(self, name: TopicName, properties: Mapping[str, str] | None = None) -> Json:
        """Return the policies of a topic, which need not exist. `properties`: of a topic that is loaded."""
        namespace = await self._policies.policies(name.namespace) or {}
        if properties is None:
            properties = await self._policies.partitioned_properties(name) if name.partition < 0 else {}
            if not properties and name.persistent and name.partition < 0:
                stored = await self._factory.stored(name.ledger_name)
                properties = {} if stored is None else stored.properties
        return await self.over(namespace, name, properties)
