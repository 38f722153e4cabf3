"""Plans of a ManagedLedger, and changes that make a namespace match its declaration."""

import re
from dataclasses import replace
from typing import Any

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.conditions import Condition
from quire_operator.api.managed_ledger import LedgerState, ManagedLedger
from quire_operator.plan import actions as act
from quire_operator.plan.ledger_observation import LedgerObservation, NamespaceState, ObservedTopic
from quire_operator.plan.managed_ledger import LedgerPlan, plan_managed_ledger
from quire_operator.plan.namespace import ACTIONS_MAX, isolation, policies, retention_mb, retention_minutes
from quire_operator.plan.observation import ObservedPod, ObservedStatefulSet, Rejection
from tests.support.kube_resources import bookie, managed_ledger

PERSISTENCE = {
    "bookkeeperEnsemble": 3,
    "bookkeeperWriteQuorum": 3,
    "bookkeeperAckQuorum": 2,
    "managedLedgerMaxMarkDeleteRate": 0.0,
}
TOPICS = [{"name": "placed", "partitions": 4, "cursors": [{"name": "billing"}]}, {"name": "audit"}]
HOSTS = r"orders\-broker-[0-9]+\.orders\-brokers\.ns\.svc"
ISOLATION = isolation("shop/orders", HOSTS)
EMPTY = NamespaceState(exists=False, isolation=ISOLATION)
THERE = NamespaceState(
    exists=True,
    isolation=ISOLATION,
    policies={"persistence": PERSISTENCE},
    topics={
        "placed": ObservedTopic(4, {"billing": 7}),
        "audit": ObservedTopic(0),
        "undeclared": ObservedTopic(0, {"old": 99}),
    },
)


def seen(namespace: NamespaceState | None = THERE, **spec: Any) -> LedgerObservation:
    manifest = managed_ledger(**({"topics": TOPICS} | spec))
    manifest["metadata"] |= {"namespace": "ns", "generation": 4, "finalizers": ["quire.dev/managedledger"]}
    return LedgerObservation(
        ManagedLedger.model_validate(manifest),
        1_000_000.0,
        Bookie.model_validate(bookie()),
        bookies=3,
        writable_bookies=3,
        stateful_set=ObservedStatefulSet("orders-broker", "u", 1),
        pods=(ObservedPod("orders-broker-0", ready=True),),
        namespace=namespace,
        under_replicated=0,
    )


def plan(what: LedgerObservation) -> LedgerPlan:
    return plan_managed_ledger(what, "quire:1")


def asked(found: LedgerPlan) -> list[Any]:
    """Return the actions other than applied children."""
    return [action for action in found.actions if not isinstance(action, act.Apply)]


def condition(found: LedgerPlan, kind: str) -> Condition:
    return next(one for one in found.status.conditions if one.type == kind)


def deleted(what: LedgerObservation) -> LedgerObservation:
    metadata = what.resource.metadata | {"deletionTimestamp": "2030-01-01T00:00:00Z"}
    return replace(what, resource=what.resource.model_copy(update={"metadata": metadata}))


def test_a_namespace_as_declared_needs_no_actions_and_is_open() -> None:
    found = plan(seen())
    assert asked(found) == []
    assert found.status.state is LedgerState.OPEN
    assert found.status.observed_generation == 4
    assert {one.type for one in found.status.conditions if one.status == "True"} == {
        *("Ready", "PolicyApplied", "Writable", "FullyReplicated", "CursorsHealthy"),
    }
    assert found.requeue_s == 60
    assert found.status.service_url == "pulsar://orders-broker.ns.svc:6650"


def test_the_status_has_declared_topics_and_the_largest_backlog_of_all() -> None:
    found = plan(seen()).status
    assert [row.name for row in found.topics] == ["placed", "audit"]
    slowest = found.topics[0].slowest_cursor
    assert slowest is not None
    assert (slowest.name, slowest.backlog) == ("billing", 7)
    assert (found.topic_count, found.backlog) == (3, 99)


def test_unknown_values_are_absent_and_never_zero() -> None:
    found = plan(replace(seen(), namespace=None)).status
    assert (found.topic_count, found.backlog) == (None, None)
    assert not {"topicCount", "backlog"} & found.plain().keys()


@pytest.mark.parametrize(
    ("cursors", "expected"),
    [({}, 0), ({"a": 0}, 0), ({"a": None}, None), ({"a": 0, "b": None}, None), ({"a": 3, "b": None}, 3)],
)
def test_the_largest_backlog_is_a_known_one(cursors: dict[str, int | None], expected: int | None) -> None:
    there = replace(THERE, topics={"placed": ObservedTopic(0, cursors=cursors)})
    found = plan(seen(there)).status
    assert (found.topic_count, found.backlog) == (1, expected)


def test_missing_objects_are_created_in_a_feasible_order() -> None:
    found = plan(seen(NamespaceState(exists=False)))
    assert asked(found) == [
        act.SetIsolation("shop~orders", ISOLATION),
        act.CreateNamespace("shop/orders"),
        act.SetPolicy("shop/orders", "persistence", PERSISTENCE),
        act.CreateTopic("shop/orders", "placed", 4),
        act.CreateCursor("shop/orders", "placed", "billing", earliest=True),
        act.CreateTopic("shop/orders", "audit", 0),
    ]
    assert found.status.state is LedgerState.CREATING
    assert condition(found, "Ready").reason == "NotAllThere"
    assert condition(found, "CursorsHealthy").message == "placed/billing"


def test_partitions_and_cursors_are_added_to_an_existing_topic() -> None:
    there = replace(THERE, topics={"placed": ObservedTopic(2), "audit": ObservedTopic(0)})
    assert asked(plan(seen(there))) == [
        act.GrowTopic("shop/orders", "placed", 4),
        act.CreateCursor("shop/orders", "placed", "billing", earliest=True),
    ]


def test_a_large_namespace_is_created_over_several_reconciliations() -> None:
    topics = [{"name": f"t{number}"} for number in range(250)]
    there = replace(THERE, topics={})
    assert len(asked(plan(seen(there, topics=topics)))) == ACTIONS_MAX


@pytest.mark.parametrize(
    ("there", "fragment"),
    [
        (ObservedTopic(6), "placed has 6 partitions, but 4 are declared"),
        (ObservedTopic(0), "placed has no partitions, but 4 are declared"),
    ],
)
def test_a_contradicting_topic_is_left_alone_and_reported(there: ObservedTopic, fragment: str) -> None:
    with_cursor = replace(there, cursors={"billing": 0})
    found = plan(seen(replace(THERE, topics={"placed": with_cursor, "audit": ObservedTopic(0)})))
    assert asked(found) == []
    assert found.status.state is LedgerState.DEGRADED
    assert fragment in condition(found, "PolicyApplied").message


def test_a_changed_policy_is_restored_and_other_fields_are_kept() -> None:
    changed = PERSISTENCE | {"bookkeeperAckQuorum": 1}
    assert asked(plan(seen(replace(THERE, policies={"persistence": changed})))) == [
        act.SetPolicy("shop/orders", "persistence", PERSISTENCE)
    ]
    extended = PERSISTENCE | {"fieldOfABroker": 1}
    assert asked(plan(seen(replace(THERE, policies={"persistence": extended})))) == []


@pytest.mark.parametrize(("time", "minutes"), [("forever", -1), ("0s", 0), ("1s", 1), ("90s", 2), ("168h", 10_080)])
def test_retention_is_never_shorter_than_requested(time: str, minutes: int) -> None:
    assert retention_minutes(time) == minutes


@pytest.mark.parametrize(("size", "mib"), [("unbounded", -1), ("0", 0), ("1", 1), ("1Gi", 1024), ("1G", 954)])
def test_retention_is_never_smaller_than_requested(size: str, mib: int) -> None:
    assert retention_mb(size) == mib


def test_retention_is_a_policy_only_if_declared() -> None:
    resource = seen(retention={"time": "forever", "size": "10Gi"}).resource
    assert policies(resource.spec)["retention"] == {"retentionTimeInMinutes": -1, "retentionSizeInMB": 10_240}
    assert "retention" not in policies(seen().resource.spec)


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"pool": None}, LedgerState.INVALID, "InvalidSpec"),
        ({"bookies": 2}, LedgerState.INVALID, "InvalidSpec"),
        ({"namespace": None}, LedgerState.DEGRADED, "NoBroker"),
        ({"namespace": None, "pods": ()}, LedgerState.CREATING, "NoBroker"),
        ({"writable_bookies": 2}, LedgerState.DEGRADED, "TooFewBookies"),
    ],
)
def test_problems_of_the_environment_are_reported(changes: dict[str, Any], state: LedgerState, reason: str) -> None:
    found = plan(replace(seen(), **changes))
    assert found.status.state is state
    assert condition(found, "Ready").reason == reason


def test_fields_without_effect_on_brokers_are_reported() -> None:
    found = plan(seen(access=[{"role": "r", "actions": ["Admin"]}]))
    assert condition(found, "NotYetServed").message == "spec.access"


@pytest.mark.parametrize(
    ("pool", "brokers", "unguarded"),
    [
        ({}, {}, False),
        ({}, {"authentication": {"tokenKeySecret": "t"}}, True),
        ({"tls": {"secretName": "s"}}, {"authentication": {"tokenKeySecret": "t"}}, True),
        (
            {"tls": {"secretName": "s", "clientAuthentication": True}},
            {"authentication": {"tokenKeySecret": "t"}},
            False,
        ),
        ({"authentication": {"tokenKeySecret": "p"}}, {"authentication": {"tokenKeySecret": "t"}}, False),
    ],
)
def test_bookies_that_bypass_the_authentication_of_brokers_are_reported(
    pool: dict[str, Any], brokers: dict[str, Any], unguarded: bool
) -> None:
    found = plan(replace(seen(brokers=brokers), pool=Bookie.model_validate(bookie(**pool))))
    assert ("BookiesUnguarded" in {one.type for one in found.status.conditions}) is unguarded


def test_a_secret_without_a_password_is_reported() -> None:
    found = plan(replace(seen(), password_fault="brokers: the Secret orders-ledger-password has no password"))
    assert found.status.state is LedgerState.INVALID and found.actions == ()
    assert "orders-ledger-password" in condition(found, "Ready").message


def test_a_paused_resource_is_observed_and_not_changed() -> None:
    found = plan(seen(NamespaceState(exists=False), paused=True))
    assert found.actions == ()
    assert found.status.state is LedgerState.PAUSED


@pytest.mark.parametrize(
    ("policy", "namespace", "expected"),
    [
        ("Retain", THERE, [act.ForgetIsolation("shop~orders"), act.SetFinalizer(False)]),
        ("Retain", None, [act.SetFinalizer(False)]),
        ("Delete", THERE, [act.DeleteNamespace("shop/orders")]),
        ("Delete", EMPTY, [act.ForgetIsolation("shop~orders"), act.SetFinalizer(False)]),
        ("Delete", NamespaceState(exists=False), [act.SetFinalizer(False)]),
        ("Delete", None, []),
    ],
)
def test_a_deleted_resource_keeps_its_data_by_default(
    policy: str, namespace: NamespaceState | None, expected: list[Any]
) -> None:
    found = plan(deleted(seen(namespace, deletionPolicy=policy)))
    assert list(found.actions) == expected
    assert found.status.state is LedgerState.DELETING
    held = condition(found, "Ready").reason == "DeletionHeld"
    assert held is (policy == "Delete" and act.SetFinalizer(False) not in expected)


def test_namespaces_of_other_resources_are_left_to_other_brokers_too_if_a_broker_responds() -> None:
    further = ("shop/returns",)
    found = plan(replace(deleted(seen()), further_namespaces=further))
    forgotten = [act.ForgetIsolation("shop~orders"), act.ForgetIsolation("shop~returns")]
    assert list(found.actions) == [*forgotten, act.SetFinalizer(False)]
    silent = plan(replace(deleted(seen(None)), further_namespaces=further))
    assert list(silent.actions) == [act.SetFinalizer(False)]


def test_orphaning_deletes_no_topics() -> None:
    what = deleted(seen(THERE, deletionPolicy="Delete"))
    metadata = what.resource.metadata | {"finalizers": ["quire.dev/managedledger", "orphan"]}
    found = plan(replace(what, resource=what.resource.model_copy(update={"metadata": metadata})))
    assert list(found.actions) == [act.SetFinalizer(False)]


def test_the_pattern_of_hosts_matches_the_pods() -> None:
    assert re.fullmatch(HOSTS, "orders-broker-0.orders-brokers.ns.svc")
    assert not re.fullmatch(HOSTS, "orders-broker-0.orders-brokers.ns2.svc")
    assert not re.fullmatch(HOSTS, "more-orders-broker-0.orders-brokers.ns.svc")


def test_a_changed_isolation_policy_is_restored() -> None:
    there = replace(THERE, isolation=ISOLATION | {"primary": [".*"]})
    assert asked(plan(seen(there))) == [act.SetIsolation("shop~orders", ISOLATION)]


def test_roles_have_declared_grants_and_others_none() -> None:
    there = replace(THERE, grants={"billing": ("consume",), "left": ("produce",), "shop": ("produce", "consume")})
    access = [
        {"role": "shop", "actions": ["Consume", "Produce"]},
        {"role": "billing", "actions": ["Produce"]},
        {"role": "new", "actions": ["Consume"]},
    ]
    assert asked(plan(seen(there, access=access))) == [
        act.Grant("shop/orders", "billing", ("produce",)),
        act.Grant("shop/orders", "left", ()),
        act.Grant("shop/orders", "new", ("consume",)),
    ]
    assert asked(plan(seen(there))) == [], "without any declared role they are left alone"


def test_admins_are_the_declared_ones_if_any_role_is_declared() -> None:
    access = [{"role": "keeper", "actions": ["Admin"]}, {"role": "shop", "actions": ["Admin", "Produce"]}]
    granted = {"shop": ("produce",)}
    there = replace(THERE, grants=granted, admins=("left", "shop"))
    assert asked(plan(seen(there, access=access))) == [act.SetAdmins("shop/orders", ("keeper", "shop"))]
    assert asked(plan(seen(replace(there, admins=("shop", "keeper")), access=access))) == []
    assert asked(plan(seen(there, access=[{"role": "shop", "actions": ["Produce"]}]))) == [
        act.SetAdmins("shop/orders", ())
    ]
    assert asked(plan(seen(replace(there, grants={})))) == [], "without any declared role they are left alone"


@pytest.mark.parametrize(
    ("quota", "limits", "policy"),
    [
        ({"size": "1Gi"}, {"limitSize": 2**30, "limitTime": -1}, "producer_request_hold"),
        (
            {"time": "90500ms", "policy": "ProducerException"},
            {"limitSize": -1, "limitTime": 91},
            "producer_exception",
        ),
        (
            {"size": "1k", "time": "1h", "policy": "ConsumerBacklogEviction"},
            {"limitSize": 1000, "limitTime": 3600},
            "consumer_backlog_eviction",
        ),
    ],
)
def test_a_backlog_quota_sets_both_kinds(quota: dict[str, Any], limits: dict[str, int], policy: str) -> None:
    value = limits | {"policy": policy}
    paths = [f"backlogQuota?backlogQuotaType={kind}" for kind in ("destination_storage", "message_age")]
    found = asked(plan(seen(backlogQuota=quota)))
    assert found == [act.SetPolicy("shop/orders", path, value) for path in paths]
    there = replace(THERE, policies={**THERE.policies, **dict.fromkeys(paths, value)})
    assert asked(plan(seen(there, backlogQuota=quota))) == []
    assert asked(plan(seen(there))) == [], "a policy that is no longer declared stays"


@pytest.mark.parametrize(("ttl", "seconds"), [("1500ms", 2), ("90s", 90), ("1h", 3600)])
def test_unconsumed_messages_expire_after_the_ttl(ttl: str, seconds: int) -> None:
    assert policies(seen(retention={"ttl": ttl}).resource.spec)["messageTTL"] == seconds
    there = replace(THERE, policies={**THERE.policies, "messageTTL": seconds})
    assert asked(plan(seen(there, retention={"ttl": ttl}))) == []


def test_unloaded_declared_topics_are_loaded_once_everything_exists() -> None:
    there = replace(
        THERE, topics={"placed": ObservedTopic(4, {"billing": None}, loaded=False), "audit": ObservedTopic(0)}
    )
    found = plan(seen(there))
    assert asked(found) == [act.LoadTopic("shop/orders", "placed", 4)]
    assert found.status.state is LedgerState.OPEN
    assert found.status.topics[0].slowest_cursor is None, "unknown is not zero"
    assert found.requeue_s == 2
    assert asked(plan(seen(replace(there, isolation=None)))) == [act.SetIsolation("shop~orders", ISOLATION)]


def test_topics_are_not_deleted_while_their_owner_is_unknown() -> None:
    found = plan(deleted(replace(seen(THERE, deletionPolicy="Delete"), pool=None)))
    assert found.actions == ()
    assert any("without Bookie pool" in (one.message or "") for one in found.status.conditions)


def test_the_younger_of_two_resources_with_one_namespace_does_nothing() -> None:
    found = plan(replace(seen(NamespaceState(exists=False)), rival="other/orders"))
    assert found.actions == ()
    assert found.status.state is LedgerState.INVALID
    assert "other/orders" in condition(found, "Ready").message
    gone = plan(deleted(replace(seen(THERE, deletionPolicy="Delete"), rival="other/orders")))
    assert list(gone.actions) == [act.SetFinalizer(False)], "the namespace belongs to the other resource"


def test_a_refusal_of_a_broker_or_the_api_server_is_reported() -> None:
    message = "POST persistence: the broker refused (412): E is too large"
    found = plan(replace(seen(), rejected=Rejection("Refused", message)))
    assert found.status.state is LedgerState.DEGRADED
    assert condition(found, "Ready").reason == "Refused"
    assert "E is too large" in condition(found, "Ready").message
