"""Parsing of the brokers' response about a namespace: partitions are summed up, and unknown values are never zero."""

from typing import Any

from quire_operator.cluster.broker_rest import namespace_state

POLICIES = {
    "persistence": {"bookkeeperEnsemble": 3},
    "message_ttl_in_seconds": 60,
    "auth_policies": {"namespace_auth": {"shop": ["produce"]}, "quire_admin_roles": ["keeper"]},
    "retention_policies": None,
    "backlog_quota_map": {"message_age": {"limitTime": 9}},
}


def part(entries: int, cursors: dict[str, int | None], **more: Any) -> dict[str, Any]:
    owner = "orders-broker-0.orders-brokers.ns.svc:8080"
    known = {"loaded": True, "owner": owner, "position": f"7:{entries - 1}", "entries": entries, "size": entries * 10}
    return known | {"cursors": cursors} | more


def body(topics: dict[str, Any], partitioned: dict[str, int]) -> dict[str, Any]:
    return {"policies": POLICIES, "bookies": {"writable": 3}, "partitioned": partitioned, "topics": topics}


def test_policies_grants_and_bookies_are_parsed() -> None:
    found = namespace_state(body({}, {}))
    quota = {"backlogQuota?backlogQuotaType=message_age": {"limitTime": 9}}
    assert found.policies == {"persistence": {"bookkeeperEnsemble": 3}, "messageTTL": 60} | quota
    assert found.grants == {"shop": ("produce",)}
    assert found.admins == ("keeper",)
    assert found.writable_bookies == 3


def test_partitions_are_summed_up_under_their_topic() -> None:
    parts = {"t-partition-0": part(4, {"a": 1, "b": 4}), "t-partition-1": part(6, {"a": 2}), "plain": part(5, {})}
    topics = namespace_state(body(parts, {"t": 2})).topics
    assert set(topics) == {"t", "plain"}
    assert (topics["t"].partitions, topics["t"].entries, topics["t"].size_bytes) == (2, 10, 100)
    assert topics["t"].cursors == {"a": 3}, "a cursor exists only if each partition has it"
    assert topics["t"].position is None
    assert (topics["plain"].partitions, topics["plain"].position) == (0, "7:4")
    assert topics["t"].owner == "orders-broker-0"


def test_a_backlog_is_known_only_if_that_of_every_partition_is() -> None:
    stored = part(4, {"a": None}, loaded=False, owner=None, position=None)
    found = namespace_state(body({"t-partition-0": part(1, {"a": 1}), "t-partition-1": stored}, {"t": 2})).topics["t"]
    assert found.cursors == {"a": None}
    assert not found.loaded


def test_a_topic_named_like_a_partition_is_a_separate_topic() -> None:
    topics = namespace_state(body({"t-partition-0": part(1, {}), "t-partition-5": part(1, {})}, {"t": 1})).topics
    assert set(topics) == {"t", "t-partition-5"}


def test_producers_are_known_if_those_of_every_partition_are() -> None:
    parts = {"t-partition-0": part(1, {}, producers=2), "t-partition-1": part(1, {}, producers=1)}
    assert namespace_state(body(parts, {"t": 2})).topics["t"].producers == 3
    stored = parts | {"t-partition-1": part(1, {}, producers=None)}
    assert namespace_state(body(stored, {"t": 2})).topics["t"].producers is None
    assert namespace_state(body({"old": part(1, {})}, {})).topics["old"].producers is None, "of an earlier broker"


def test_a_strategy_that_was_never_set_is_no_policy() -> None:
    unset = body({}, {}) | {"policies": {"schema_compatibility_strategy": "UNDEFINED", "deduplicationEnabled": False}}
    assert namespace_state(unset).policies == {"deduplication": False}
