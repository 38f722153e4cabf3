"""Hashes of topic lists, and what is said about schemas."""

import pytest

from quire_broker.server.discovery import STRUCTURED_SCHEMAS, get_or_create_schema, get_schema, topics_hash
from quire_broker.wire.frames import FrameDecoder
from quire_broker.wire.proto import pulsar_pb2 as pb

PREFIX = "persistent://public/default/"


@pytest.mark.parametrize(
    ("names", "expected"),
    [(["b", "a"], "c7559e98"), (["jw-1"], "f9f9f3d6"), (["jw-1", "jw-2"], "6064a51d")],
)
def test_the_hash_of_topics_is_the_stock_one(names: list[str], expected: str) -> None:
    assert topics_hash([PREFIX + name for name in names]) == expected


def test_schemas_are_answered_in_their_own_type() -> None:
    (missing,) = FrameDecoder(1000).feed(get_schema(pb.CommandGetSchema(request_id=3, topic="t")))
    assert isinstance(missing, pb.BaseCommand)
    assert (missing.get_schema_response.request_id, missing.get_schema_response.error_code) == (3, 11)
    request = pb.CommandGetOrCreateSchema(request_id=4, topic="t")
    request.schema.name, request.schema.schema_data, request.schema.type = "s", b"{}", 2
    (refused,) = FrameDecoder(1000).feed(get_or_create_schema(request))
    assert isinstance(refused, pb.BaseCommand)
    assert refused.get_or_create_schema_response.error_code == 18
    request.schema.type = 0
    (none,) = FrameDecoder(1000).feed(get_or_create_schema(request))
    assert isinstance(none, pb.BaseCommand)
    assert not none.get_or_create_schema_response.HasField("error_code")
    assert 2 in STRUCTURED_SCHEMAS
    assert 1 not in STRUCTURED_SCHEMAS
