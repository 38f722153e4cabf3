"""Policies of single topics: how they are kept, and that they replace a namespace's one by one."""

import pytest

from quire_broker.policies.fields import FIELDS, OFFLOAD
from quire_broker.policies.of_topics import PATHS, PROPERTY, encoded, merged, own_policies
from quire_broker.policies.rates import PUBLISH
from quire_broker.policies.unserved import UNSERVED


def test_policies_survive_their_property() -> None:
    own = {"max_producers_per_topic": 2, "retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}}
    value = encoded(own)
    assert value is not None
    assert own_policies({PROPERTY: value, "other": "x"}) == own
    assert encoded({}) is None
    assert encoded({"max_producers_per_topic": None, "backlog_quota_map": {}}) is None


@pytest.mark.parametrize("value", ["", "{", "[1]", "7", '{"max_producers_per_topic": "many"}'])
def test_unreadable_policies_are_omitted(value: str) -> None:
    assert own_policies({PROPERTY: value}) == {}
    assert own_policies({}) == {}


def test_own_policies_replace_those_of_the_namespace() -> None:
    size, age = {"limitSize": 1, "policy": "producer_exception"}, {"limitTime": 2, "policy": "producer_exception"}
    namespace = {"a": 1, "b": 2, "backlog_quota_map": {"destination_storage": size, "message_age": size}}
    own = {"b": 3, "backlog_quota_map": {"message_age": age}}
    both = {"a": 1, "b": 3, "backlog_quota_map": {"destination_storage": size, "message_age": age}}
    assert merged(namespace, own, "c") == both
    assert merged(namespace, {}, "c") == namespace


def test_an_own_rate_that_limits_nothing_leaves_the_one_of_the_namespace() -> None:
    namespace = {PUBLISH: {"c": {"publishThrottlingRateInMsg": 5}}}
    for own in ({"publishThrottlingRateInMsg": 0}, {"publishThrottlingRateInMsg": -1}, {}):
        assert merged(namespace, {PUBLISH: {"c": own}}, "c")[PUBLISH] == namespace[PUBLISH]
    assert merged(namespace, {PUBLISH: {"c": {"publishThrottlingRateInByte": 7}}}, "c")[PUBLISH] != namespace[PUBLISH]


def test_every_path_has_a_checked_field_and_is_not_refused_as_well() -> None:
    assert set(PATHS.values()) <= set(FIELDS)
    assert not set(PATHS) & set(UNSERVED)


def test_each_field_of_own_offload_policies_replaces_that_of_the_namespace() -> None:
    namespace = {OFFLOAD: {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadBucket": "all"}}
    own = {OFFLOAD: {"managedLedgerOffloadBucket": "own", "managedLedgerOffloadThresholdInBytes": 5}}
    assert merged(namespace, own, "c")[OFFLOAD] == {**namespace[OFFLOAD], **own[OFFLOAD]}
    assert merged({}, own, "c")[OFFLOAD] == own[OFFLOAD]
