"""Decides whether a schema may follow the schemas of a topic. Strategies are Pulsar's. Pure.
type                       rule
Avro, JSON, Protobuf       Avro's schema resolution
ProtobufNative             the same root message
KeyValue                   key and value, each by its own type
everything else            the same type
"""

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from quire_broker.schemas.avro_check import AvroSchema, unreadable
from quire_broker.schemas.budget import Budget
from quire_broker.schemas.stored import AVRO_TYPES, Schema, SchemaType, split_key_value


class Strategy(Enum):
    """Which schemas must be able to read data of which."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def transitive(self) -> bool:
        """Whether all versions must be compatible, or only the newest."""
        return self.name.endswith("_TRANSITIVE")

    @property
    def backward(self) -> bool:
        """Whether the new schema must read data of the old ones."""
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def forward(self) -> bool:
        """Whether the old schemas must read data of the new one."""
        return self.name.startswith(("FORWARD", "FULL"))

    def of_consumer(self) -> "Strategy":
        """The strategy for a consumer's schema, which only reads."""
        if self in (Strategy.ALWAYS_COMPATIBLE, Strategy.ALWAYS_INCOMPATIBLE):
            return self
        return (
            Strategy.BACKWARD_TRANSITIVE
            if self in (Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE)
            else (Strategy.BACKWARD)
        )


OLD_STRATEGIES: Final[Mapping[str, Strategy]] = {
    "AutoUpdateDisabled": Strategy.ALWAYS_INCOMPATIBLE,
    "Backward": Strategy.BACKWARD,
    "Forward": Strategy.FORWARD,
    "Full": Strategy.FULL,
    "AlwaysCompatible": Strategy.ALWAYS_COMPATIBLE,
    "BackwardTransitive": Strategy.BACKWARD_TRANSITIVE,
    "ForwardTransitive": Strategy.FORWARD_TRANSITIVE,
    "FullTransitive": Strategy.FULL_TRANSITIVE,
}


def flaw_of(schema: Schema, budget: Budget) -> str | None:
    """Return why this is not a valid schema, or None. BudgetSpentError."""
    try:
        if schema.type in AVRO_TYPES:
            AvroSchema(schema.data, budget)
        elif schema.type is SchemaType.PROTOBUF_NATIVE:
            _root_message(schema, budget)
        elif schema.type is SchemaType.KEY_VALUE:
            for part in split_key_value(schema):
                flaw = flaw_of(part, budget)
                if flaw:
                    return flaw
    except ValueError as error:
        return f"Invalid schema definition data for {schema.type.name} schema: {error}"
    return None


def incompatible(new: Schema, existing: Sequence[Schema], strategy: Strategy, budget: Budget) -> str | None:
    """Return why `new` may not follow `existing` (oldest first); None if it may. BudgetSpentError."""
    if not existing or strategy is Strategy.ALWAYS_COMPATIBLE:
        return None
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return "the strategy is ALWAYS_INCOMPATIBLE: no schema may follow the first"
    for old in existing if strategy.transitive else existing[-1:]:
        if old.type is not new.type:
            return f"Incompatible schema: exists schema type {old.type.name}, new schema type {new.type.name}"
        if strategy.backward:
            flaw = _unreadable(new, old, budget)
            if flaw:
                return f"the new schema cannot read existing data: {flaw}"
        if strategy.forward:
            flaw = _unreadable(old, new, budget)
            if flaw:
                return f"readers of the existing schema cannot read the new one: {flaw}"
    return None


def same(one: Schema, other: Schema, budget: Budget) -> bool:
    """Return whether two schemas are one version: equal data, or equal JSON of Avro schemas. BudgetSpentError."""
    if one.type is not other.type:
        return False
    if one.data == other.data:
        return one.type is not SchemaType.KEY_VALUE or _key_value_types(one) == _key_value_types(other)
    if one.type not in AVRO_TYPES:
        return False
    budget.spend_bytes(len(one.data) + len(other.data))
    try:
        return bool(json.loads(one.data) == json.loads(other.data))
    except (ValueError, RecursionError):
        return False  # stored by an older client in another form


def _key_value_types(schema: Schema) -> list[str | None]:
    names = ("key.schema.type", "value.schema.type", "kv.encoding.type")
    return [schema.properties.get(name) for name in names]


def _root_message(schema: Schema, budget: Budget) -> str:
    """Return the root message; ValueError if the data is not a native Protobuf schema."""
    budget.spend_bytes(len(schema.data))
    try:
        decoded = json.loads(schema.data)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(decoded, dict) or not isinstance(decoded.get("rootMessageTypeName"), str):
        raise ValueError("rootMessageTypeName is missing")
    return str(decoded["rootMessageTypeName"])


def _unreadable(reader: Schema, writer: Schema, budget: Budget) -> str | None:
    try:
        return _flaw_between(reader, writer, budget)
    except ValueError as error:
        return f"a stored schema does not parse: {error}"


def _flaw_between(reader: Schema, writer: Schema, budget: Budget) -> str | None:
    if reader.type is not writer.type:
        return f"{writer.type.name} was written, {reader.type.name} is expected"
    if reader.type in AVRO_TYPES:
        return unreadable(AvroSchema(reader.data, budget), AvroSchema(writer.data, budget), budget)
    if reader.type is SchemaType.PROTOBUF_NATIVE:
        old, new = _root_message(writer, budget), _root_message(reader, budget)
        return None if old == new else f"root message {old} was written, {new} is expected"
    if reader.type is SchemaType.KEY_VALUE:
        for mine, theirs in zip(split_key_value(reader), split_key_value(writer), strict=True):
            flaw = _unreadable(mine, theirs, budget)
            if flaw:
                return flaw
    return None
