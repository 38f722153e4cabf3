"""Topic names: all their forms, partitions, and their encoding in paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_broker.errors import InvalidTopicNameError
from quire_broker.names import (
    NamespaceName,
    check_part,
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
def test_invalid_names_are_refused(text: str) -> None:
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


@pytest.mark.parametrize(
    "text", ["a\nb", "persistent://t/n/a\x1bb", "t/n/a\u2028", "t\n/n/a", "x" * 1025, "a/" * 1_000_000]
)
def test_control_characters_and_very_long_names_are_refused_in_a_short_line(text: str) -> None:
    with pytest.raises(InvalidTopicNameError) as error:
        parse_topic(text)
    assert str(error.value).isprintable() and len(str(error.value)) < 1200


def test_a_stored_topic_keeps_its_odd_name_and_reports_its_flaw() -> None:
    name = topic_of_ledger("t/n/persistent/a%0Ab-partition-1")
    assert (name.local, name.partition) == ("a\nb-partition-1", 1)
    assert name.flaw is not None and "a\\nb" in name.flaw
    with pytest.raises(InvalidTopicNameError):
        name.require_creatable()
    assert parse_topic("x").flaw is None


@pytest.mark.parametrize("text", ["", "a b", "a/b", "a\nb", "x" * 1025, "ä"])
def test_names_of_tenants_are_short_and_of_letters(text: str) -> None:
    with pytest.raises(InvalidTopicNameError, match="is not a valid name of a tenant"):
        check_part("tenant", text)
    check_part("tenant", "acme-1=x:y.z_")
