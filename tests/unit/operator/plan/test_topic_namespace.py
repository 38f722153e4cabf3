"""Plans of a TopicNamespace: its policies, and the brokers that serve it."""

from typing import Any

import pytest

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.topic_namespace import SchemaCompatibility, TopicNamespace
from quire_operator.plan import actions as act
from quire_operator.plan.declared import Surroundings
from quire_operator.plan.ledger_observation import NamespaceState, ObservedTopic
from quire_operator.plan.namespace import isolation
from quire_operator.plan.topic_namespace import TopicNamespaceObservation, plan_topic_namespace, policies
from tests.support.kube_resources import changed, declared, managed_ledger

NAME = "shop/returns"
HOSTS = r"orders\-broker-[0-9]+\.orders\-brokers\.ns\.svc"
SERVED = isolation(NAME, HOSTS)
RETENTION = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
DECLARED = {"time": "1h", "size": "unbounded"}
LEDGER = ManagedLedger.model_validate(changed(managed_ledger(), {"metadata.namespace": "ns"}))
SET_SERVED = act.SetIsolation("shop~returns", SERVED)
SET_RETENTION = act.SetPolicy(NAME, "retention", RETENTION)


def observed(
    state: NamespaceState | None, changes: dict[str, Any] | None = None, **spec: Any
) -> TopicNamespaceObservation:
    manifest = changed(declared("TopicNamespace", "returns", namespace=NAME, **spec), changes or {})
    return TopicNamespaceObservation(TopicNamespace.model_validate(manifest), Surroundings(1e9, LEDGER), state)


def there(**policies: Any) -> NamespaceState:
    return NamespaceState(True, policies, isolation=SERVED, topics={"a": ObservedTopic(0, {"s": 4}, size_bytes=9)})


@pytest.mark.parametrize(
    ("state", "spec", "actions"),
    [
        (
            NamespaceState(False),
            {"retention": DECLARED},
            (SET_SERVED, act.CreateNamespace(NAME), SET_RETENTION),
        ),
        (there(), {"retention": DECLARED}, (SET_RETENTION,)),
        (there(retention=RETENTION), {"retention": DECLARED}, ()),
        (there(retention=RETENTION | {"retentionSizeInMB": 5}), {"retention": DECLARED}, (SET_RETENTION,)),
        (there(retention=RETENTION), {}, ()),
        (None, {"retention": DECLARED}, ()),
    ],
)
def test_a_namespace_becomes_as_declared(
    state: NamespaceState | None, spec: dict[str, Any], actions: tuple[object, ...]
) -> None:
    decision, _ = plan_topic_namespace(observed(state, **spec))
    assert decision.actions == actions


def test_a_policy_that_is_no_longer_declared_is_removed_only_if_the_operator_set_it() -> None:
    state = there(retention=RETENTION, messageTTL=60)
    decision, _ = plan_topic_namespace(observed(state, {"status.policies": ["retention"]}))
    assert decision.actions == (act.RemovePolicy(NAME, "retention"),)


def test_the_status_names_the_policies_before_they_are_set_and_until_they_are_removed() -> None:
    unclaimed = {"status.managed": False}
    _, status = plan_topic_namespace(observed(there(), unclaimed, deduplication=True))
    assert status.managed and status.policies == ("deduplication",)
    _, status = plan_topic_namespace(observed(there(retention=RETENTION), {"status.policies": ["retention"]}))
    assert status.policies == ("retention",)
    _, status = plan_topic_namespace(observed(there(), {"status.policies": ["retention"]}))
    assert status.policies == ()


@pytest.mark.parametrize(
    ("spec", "path", "value"),
    [
        ({"schemaCompatibility": "BackwardTransitive"}, "schemaCompatibilityStrategy", "BACKWARD_TRANSITIVE"),
        ({"schemaCompatibility": "Full"}, "schemaCompatibilityStrategy", "FULL"),
        ({"deduplication": False}, "deduplication", False),
        ({"autoTopicCreation": False}, "autoTopicCreation", {"allowAutoTopicCreation": False}),
        ({"retention": {"ttl": "1500ms"}}, "messageTTL", 2),
        (
            {"replication": {"ensemble": 2, "writeQuorum": 2, "ackQuorum": 1}},
            "persistence",
            {
                "bookkeeperEnsemble": 2,
                "bookkeeperWriteQuorum": 2,
                "bookkeeperAckQuorum": 1,
                "managedLedgerMaxMarkDeleteRate": 0.0,
            },
        ),
        (
            {"backlogQuota": {"size": "1Ki", "policy": "ProducerException"}},
            "backlogQuota?backlogQuotaType=message_age",
            {"limitSize": 1024, "limitTime": -1, "policy": "producer_exception"},
        ),
    ],
)
def test_policies_are_in_pulsars_format(spec: dict[str, Any], path: str, value: object) -> None:
    assert policies(observed(None, **spec).resource.spec)[path] == value


def test_each_strategy_is_one_that_brokers_know() -> None:
    from quire_broker.schemas.compatibility import Strategy

    for one in SchemaCompatibility:
        found = policies(observed(None, schemaCompatibility=one.value).resource.spec)
        assert found["schemaCompatibilityStrategy"] in Strategy.__members__


def test_a_namespace_that_other_brokers_serve_is_not_adopted() -> None:
    elsewhere = NamespaceState(True, isolation=isolation(NAME, "others-broker-0"))
    decision, _ = plan_topic_namespace(observed(elsewhere, {"status.managed": False}))
    assert decision.outcome.reason == "NotAdopted" and "are not set to serve" in decision.outcome.message


def test_the_status_has_figures_only_while_they_are_known() -> None:
    _, status = plan_topic_namespace(observed(there()))
    assert (status.topics, status.backlog, status.size_bytes) == (1, 4, 9)
    _, status = plan_topic_namespace(observed(None))
    assert (status.topics, status.backlog, status.size_bytes) == (None, None, None)


def test_a_namespace_with_topics_is_not_deleted_and_a_kept_one_is_left_to_all_brokers() -> None:
    deleted = {"metadata.deletionTimestamp": "2026-01-02T00:00:00Z"}
    held, _ = plan_topic_namespace(observed(there(), deleted, deletionPolicy="Delete"))
    assert not held.actions and "still has topics (1)" in held.outcome.message
    empty = NamespaceState(True, isolation=SERVED)
    gone, _ = plan_topic_namespace(observed(empty, deleted, deletionPolicy="Delete"))
    assert gone.actions == (act.DeleteEmptyNamespace(NAME),)
    kept, _ = plan_topic_namespace(observed(there(), deleted))
    assert kept.actions == (act.ForgetIsolation("shop~returns"), act.SetFinalizer(False))
    silent, _ = plan_topic_namespace(observed(None, deleted))
    assert silent.actions == (act.SetFinalizer(False),), "a silent broker does not hold a resource whose object stays"
