"""Plans of a Topic."""

from dataclasses import replace
from typing import Any

import pytest

from quire_operator.api.conditions import Truth
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.topic import TopicResource
from quire_operator.plan import actions as act
from quire_operator.plan.declared import Surroundings
from quire_operator.plan.ledger_observation import NamespaceState, ObservedSchema, ObservedTopic
from quire_operator.plan.topic import TopicObservation, declared_by_ledger, plan_topic
from tests.support.kube_resources import changed, declared, managed_ledger

NAME = "shop/orders"
LEDGER = ManagedLedger.model_validate(changed(managed_ledger(), {"metadata.namespace": "ns"}))
THERE = ObservedTopic(4, {"billing": 7}, 9, 90, owner="orders-broker-0", producers=2)
BILLING = {"name": "billing"}
DELETED = {"metadata.deletionTimestamp": "2026-01-02T00:00:00Z"}


def topic(changes: dict[str, Any] | None = None, **spec: Any) -> TopicResource:
    return TopicResource.model_validate(changed(declared("Topic", "placed", **spec), changes or {}))


def observed(there: ObservedTopic | None, changes: dict[str, Any] | None = None, **spec: Any) -> TopicObservation:
    state = NamespaceState(True, topics={} if there is None else {"placed": there})
    return TopicObservation(topic(changes, **spec), Surroundings(1e9, LEDGER), state)


@pytest.mark.parametrize(
    ("there", "spec", "actions"),
    [
        (None, {}, (act.CreateTopic(NAME, "placed", 0),)),
        (
            None,
            {"partitions": 4, "subscriptions": [BILLING | {"initialPosition": "Latest"}]},
            (act.CreateTopic(NAME, "placed", 4), act.CreateCursor(NAME, "placed", "billing", False)),
        ),
        (THERE, {"partitions": 4, "subscriptions": [BILLING]}, ()),
        (THERE, {"partitions": 4}, ()),
        (THERE, {"partitions": 6}, (act.GrowTopic(NAME, "placed", 6),)),
        (
            THERE,
            {"partitions": 4, "subscriptions": [BILLING, {"name": "audit"}]},
            (act.CreateCursor(NAME, "placed", "audit", True),),
        ),
        (replace(THERE, loaded=False), {"partitions": 4}, (act.LoadTopic(NAME, "placed", 4),)),
    ],
)
def test_a_topic_becomes_as_declared(
    there: ObservedTopic | None, spec: dict[str, Any], actions: tuple[object, ...]
) -> None:
    decision, _ = plan_topic(observed(there, **spec))
    assert decision.actions == actions


@pytest.mark.parametrize(
    ("there", "partitions", "words"),
    [
        (THERE, 3, "has 4 partitions, but 3 are declared: partitions cannot be removed"),
        (THERE, 0, "a topic cannot be converted"),
        (ObservedTopic(0), 2, "a topic cannot be converted"),
    ],
)
def test_fewer_partitions_or_another_form_is_reported_and_nothing_is_changed(
    there: ObservedTopic, partitions: int, words: str
) -> None:
    decision, status = plan_topic(observed(there, partitions=partitions, subscriptions=[{"name": "new"}]))
    assert not decision.actions
    ready = next(one for one in status.conditions if one.type == "Ready")
    assert (ready.status, ready.reason) == (Truth.FALSE, "Contradiction") and words in ready.message


def test_a_topic_that_exists_is_adopted_with_new_subscriptions_but_not_with_more_partitions() -> None:
    unclaimed = {"status.managed": False}
    adopted, _ = plan_topic(observed(THERE, unclaimed, partitions=4, subscriptions=[{"name": "audit"}]))
    assert adopted.managed
    refused, _ = plan_topic(observed(THERE, unclaimed, partitions=8))
    assert refused.outcome.reason == "NotAdopted"
    assert "it has 4 partitions, declared are 8" in refused.outcome.message


AVRO = {"type": "AVRO", "definition": '{"type": "string"}'}


def with_schema(schema: ObservedSchema | None, changes: dict[str, Any] | None = None) -> TopicObservation:
    return replace(observed(THERE, changes, partitions=4, schema=AVRO), schema=schema)


def test_a_declared_schema_is_registered_after_the_topic_exists() -> None:
    schema = topic(schema=AVRO).spec.topic_schema
    assert schema is not None
    register = act.RegisterSchema(NAME, "placed", schema)
    decision, status = plan_topic(with_schema(ObservedSchema(None)))
    assert decision.actions[-1] == register and status.schema_version is None
    assert "the declared schema of type AVRO is not registered" in decision.outcome.message
    new = replace(observed(None, schema=AVRO), schema=ObservedSchema(None))
    assert plan_topic(new)[0].actions == (act.CreateTopic(NAME, "placed", 0), register)


def test_a_registered_schema_is_left_alone() -> None:
    decision, status = plan_topic(with_schema(ObservedSchema(3)))
    assert (decision.actions, status.schema_version) == ((), 3)


def test_a_topic_with_other_schemas_is_not_adopted_unasked() -> None:
    unclaimed = {"status.managed": False}
    assert plan_topic(with_schema(ObservedSchema(None), unclaimed))[0].managed, "the first schema only adds"
    refused, _ = plan_topic(with_schema(ObservedSchema(None, newest=2), unclaimed))
    assert refused.outcome.reason == "NotAdopted" and "the newest one is version 2" in refused.outcome.message


def test_a_topic_waits_for_its_namespace() -> None:
    missing = TopicObservation(topic(namespace="shop/new"), Surroundings(1e9, LEDGER), NamespaceState(False))
    decision, status = plan_topic(missing)
    assert (decision.outcome.reason, decision.actions) == ("NoNamespace", ())
    assert status.topic == "persistent://shop/new/placed"


def test_a_topic_of_a_silent_broker_is_unknown() -> None:
    decision, status = plan_topic(TopicObservation(topic(), Surroundings(1e9, LEDGER), None))
    assert decision.outcome.ready is Truth.UNKNOWN and not decision.actions
    assert (status.partitions, status.backlog, status.producers) == (None, None, None)


def test_the_status_has_the_figures_of_the_broker() -> None:
    _, status = plan_topic(observed(THERE, partitions=4))
    assert (status.partitions, status.producers, status.subscriptions, status.backlog) == (4, 2, 1, 7)
    assert (status.entries, status.size_bytes, status.owner) == (9, 90, "orders-broker-0")


def test_the_spec_of_the_managed_ledger_wins() -> None:
    own = ManagedLedger.model_validate(managed_ledger(topics=[{"name": "placed"}]))
    assert declared_by_ledger(topic(), own) == "ManagedLedger default/orders (spec.topics)"
    assert declared_by_ledger(topic(topic="other"), own) is None
    assert declared_by_ledger(topic(namespace="shop/returns"), own) is None


def test_a_topic_in_use_is_not_deleted() -> None:
    held, _ = plan_topic(observed(THERE, DELETED, partitions=4, deletionPolicy="Delete"))
    assert not held.actions and "still has producers (2)" in held.outcome.message
    for producers in (0, None):
        gone, _ = plan_topic(observed(replace(THERE, producers=producers), DELETED, deletionPolicy="Delete"))
        assert gone.actions == (act.DeleteTopic(NAME, "placed", 4),)
    kept, _ = plan_topic(observed(THERE, DELETED))
    assert kept.actions == (act.SetFinalizer(False),)
