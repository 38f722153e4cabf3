"""Topic names: all their forms, partitions, and the way into paths and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.errors import InvalidTopicNameError
from quire_broker.topic.topic_names import (
    NamespaceName,
    decode_name,
    encode_name,
    parse_namespace,
    parse_topic,
    topic_of_ledger,
)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("a", "persistent://public/default/a"),
        ("t/n/a", "persistent://t/n/a"),
        ("persistent://t/n/a", "persistent://t/n/a"),
        ("non-persistent://t/n/a", "non-persistent://t/n/a"),
        ("persistent://t/n/a/b", "persistent://t/n/a/b"),
    ],
)
def test_all_forms_of_a_name(text: str, full: str) -> None:
    assert str(parse_topic(text)) == full


@pytest.mark.parametrize(
    "text",
    ["", "t/n", "a/b/c/d", "weird://t/n/a", "persistent://t/n", "persistent://t/n/", "persistent://t/n/ ",
     "persistent:///n/a", "persistent://t//a", "persistent://t s/n/a", "x" * 2000],
)  # fmt: skip
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        parse_topic(text)


def test_partitions_know_their_topic() -> None:
    topic = parse_topic("orders")
    partition = topic.partition_of(12)
    assert (topic.partition, partition.partition) == (-1, 12)
    assert parse_topic(str(partition)) == partition
    assert partition.partitioned == topic
    assert topic.partitioned is topic
    assert parse_topic("orders-partition-012").partition == -1
    assert parse_topic("-partition-1").partition == -1


def test_the_ledger_name_is_encoded_like_a_form() -> None:
    topic = parse_topic("persistent://t/n/a b/ü~*")
    assert topic.ledger_name == "t/n/persistent/a+b%2F%C3%BC%7E*"
    assert topic_of_ledger(topic.ledger_name) == topic


@given(st.text(min_size=1, max_size=40))
def test_encoding_is_reversible_and_one_path_component(name: str) -> None:
    encoded = encode_name(name)
    assert decode_name(encoded) == name
    assert "/" not in encoded


def test_namespaces() -> None:
    assert parse_namespace("t/n") == NamespaceName("t", "n")
    for wrong in ("t", "t/n/x", "/n", "t/", "t/n n"):
        with pytest.raises(InvalidTopicNameError):
            parse_namespace(wrong)


def test_system_topics_are_known() -> None:
    assert parse_topic("__change_events").is_system
    assert parse_topic("persistent://pulsar/system/x").is_system
    assert not parse_topic("x").is_system
