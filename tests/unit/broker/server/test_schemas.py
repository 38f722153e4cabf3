"""Which schemas of requests count, and what a namespace demands."""

from typing import Any

import pytest

from quire_broker.errors import SchemaError
from quire_broker.schemas.compatibility import Strategy
from quire_broker.schemas.stored import Schema, SchemaType
from quire_broker.server.schemas import schema_of, strategy_of
from quire_broker.topic.topic_names import NamespaceName
from quire_broker.wire.proto import pulsar_pb2 as pb


class Policies:
    """A namespace with these."""

    def __init__(self, found: dict[str, Any] | None) -> None:
        self._found = found

    async def policies(self, namespace: NamespaceName) -> dict[str, Any] | None:
        return self._found


def test_bytes_are_no_schema_and_unknown_types_are_refused() -> None:
    assert schema_of(pb.Schema(name="", schema_data=b"", type=0)) is None
    assert schema_of(pb.Schema()) is None
    found = schema_of(pb.Schema(name="x", schema_data=b"d", type=2, properties=[pb.KeyValue(key="a", value="b")]))
    assert found == Schema(SchemaType.JSON, b"d", {"a": "b"})
    with pytest.raises(SchemaError, match="99"):
        schema_of(pb.Schema(name="", schema_data=b"", type=99))


@pytest.mark.parametrize(
    ("policies", "strategy"),
    [(None, "FULL"), ({"schema_compatibility_strategy": "UNDEFINED"}, "FULL")]
    + [
        ({"schema_compatibility_strategy": each.name}, each.name) for each in Strategy if each is not Strategy.UNDEFINED
    ],
)
async def test_full_unless_the_namespace_says_otherwise(policies: dict[str, Any] | None, strategy: str) -> None:
    assert (await strategy_of(Policies(policies), NamespaceName("t", "n"))).name == strategy  # type: ignore[arg-type]


async def test_a_strategy_that_there_is_not_is_named() -> None:
    with pytest.raises(SchemaError, match="'SOME'"):
        await strategy_of(Policies({"schema_compatibility_strategy": "SOME"}), NamespaceName("t", "n"))  # type: ignore[arg-type]
