"""The rules that a leader reads: after a failure they are read again."""

import random

import pytest

from quire_bookie.errors import MetadataUnavailableError
from quire_broker.balancing import cluster_view
from quire_broker.balancing.cluster_view import RuleBook
from quire_broker.names import parse_namespace
from quire_broker.policies.store import PolicyStore
from tests.sim.metadata import SimMetadata, SimMetadataStore

NAMESPACE = parse_namespace("shop/orders")


async def test_groups_that_could_not_be_read_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_view, "ISOLATION_S", 3600.0)
    session = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    policies = PolicyStore(session, "c1")
    await policies.create_tenant(NAMESPACE.tenant, {})
    await policies.create_namespace(NAMESPACE, {"bundles": {"numBundles": 1}})
    book = RuleBook(session, policies)
    assert (await book.rules()).groups == {}
    await policies.set_anti_affinity(NAMESPACE, "apart")
    policies.changes += 1  # as its watch does
    session.cut = True
    with pytest.raises(MetadataUnavailableError):
        await book.rules()
    session.reach()
    assert (await book.rules()).groups == {"shop/orders": "apart"}
