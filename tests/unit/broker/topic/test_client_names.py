"""Names and properties of clients: which are refused, and the reason in the error."""

import pytest

from quire_broker.errors import NotAllowedError, ServerError, server_error_of
from quire_broker.limits import PROPERTIES_CHARACTERS_MAX
from quire_broker.topic.client_names import check_name, check_properties
from quire_broker.wire.proto import pulsar_pb2 as pb


@pytest.mark.parametrize("name", ["s", "a b", "Grüße, 東京", "x" * 100, "a/b", "..", "\xa0", "%0A"])
def test_odd_names_are_accepted(name: str) -> None:
    check_name("subscription", name, 100, required=True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the subscription name is empty"),
        ("x" * 101, r"has 101 characters; the limit is 100 \(nameMaxCharacters\)"),
        ("x" * 2_000_000, "has 2000000 characters"),
        ("a\nb", r"the subscription name 'a\\nb' holds a control character"),
        ("\x1b[2J", r"x1b\[2J' holds"),
        ("\x85", "holds a control character"),
        ("\u2028", "holds a control character"),
    ],
)
def test_a_name_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(NotAllowedError, match=reason) as error:
        check_name("subscription", name, 100, required=True)
    assert server_error_of(error.value) == ServerError.NOT_ALLOWED
    assert str(error.value).isprintable() and len(str(error.value)) < 200


def test_a_producer_needs_no_name() -> None:
    check_name("producer", "", 100)


def test_properties_are_bounded_together() -> None:
    half = PROPERTIES_CHARACTERS_MAX // 2
    check_properties("producer", [pb.KeyValue(key="k", value="v" * (half - 1)), pb.KeyValue(key="k" * half, value="")])
    with pytest.raises(NotAllowedError, match="properties of the producer have 65537 characters; the limit is 65536"):
        check_properties("producer", [pb.KeyValue(key="k", value="v" * half), pb.KeyValue(key="k" * half, value="")])
