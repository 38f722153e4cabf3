"""The children of a ManagedLedger whose declared revision is applied to all pods."""

from typing import Any

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders.broker import AppliedRevision, BrokerFacts, broker_children, revision_of


def declared_children(resource: ManagedLedger, facts: BrokerFacts) -> list[dict[str, Any]]:
    """Return the manifests in the order of creation."""
    return broker_children(resource, facts, AppliedRevision(revision_of(resource, facts)))
