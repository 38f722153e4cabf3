"""Conversion of models to structural schemas."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Union

import pytest
from pydantic import Field

from quire_operator.api.crds import KINDS, crd
from quire_operator.api.fields import ApiModel, Quantity, Rule, keyed, section
from quire_operator.api.structural import NotStructuralError, structural_schema


class Colour(StrEnum):
    RED = "Red"
    BLUE = "Blue"


class Inner(ApiModel):
    """A nested model."""

    RULES = (Rule("self.someSize != ''", "empty", ".someSize"),)

    some_size: Quantity = Field("1Gi", description="Its size.")


class Item(ApiModel):
    """An item."""

    name: str = Field(description="Key.")
    colour: Colour | None = Field(None, description="Colour.")


class Outer(ApiModel):
    """A model with nested ones."""

    inner: Inner = section(Inner, "The inner part.", (Rule("true", "never"),))
    maybe: Inner | None = Field(None, description="Perhaps.")
    items: tuple[Item, ...] = keyed("name", 5, "Items.")


def test_references_and_nulls_are_inlined_and_rules_stay() -> None:
    schema = structural_schema(Outer)
    inner = schema["properties"]["inner"]
    assert inner["description"] == "The inner part."
    assert inner["default"] == {"someSize": "1Gi"}, "rules apply before nested defaults are filled in"
    assert [rule["message"] for rule in inner["x-kubernetes-validations"]] == ["empty", "never"]
    assert inner["properties"]["someSize"]["default"] == "1Gi"
    assert schema["properties"]["maybe"]["type"] == "object"
    assert "default" not in schema["properties"]["maybe"]


def test_keyed_lists_have_extensions_and_no_default() -> None:
    items = structural_schema(Outer)["properties"]["items"]
    assert items["x-kubernetes-list-type"] == "map"
    assert items["x-kubernetes-list-map-keys"] == ["name"]
    assert items["maxItems"] == 5
    assert items["items"]["required"] == ["name"]
    assert items["items"]["properties"]["colour"]["enum"] == ["Red", "Blue"]
    assert "default" not in items


class TwoKinds(ApiModel):
    """Not allowed."""

    value: Union[int, str] = 1  # noqa: UP007


class Recursive(ApiModel):
    """Not allowed either."""

    inside: "Recursive | None" = None


class Above(ApiModel):
    """Not allowed: `exclusiveMinimum` is a number here and a boolean there."""

    value: int = Field(gt=0)


@pytest.mark.parametrize(
    ("model", "reason"), [(TwoKinds, "2 alternatives"), (Recursive, "contains itself"), (Above, "exclusiveMinimum")]
)
def test_a_model_without_a_structural_schema_is_an_error(model: type[ApiModel], reason: str) -> None:
    with pytest.raises(NotStructuralError, match=reason):
        structural_schema(model)


def _nodes(node: Any) -> Any:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _nodes(value)


def _fields(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every field below a schema; a field may itself be named `properties`."""
    for name, child in schema.get("properties", {}).items():
        yield name, child
        yield from _fields(child)
    for inside in ("items", "additionalProperties"):
        if isinstance(schema.get(inside), dict):
            yield from _fields(schema[inside])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_field_of_the_resources_has_a_description(kind: Any) -> None:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name, child in _fields(schema):
        if name not in ("apiVersion", "kind", "metadata"):
            assert child.get("description"), name


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_list_map_and_string_of_a_spec_is_bounded_for_cel_costs(kind: Any) -> None:
    schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for node in _nodes(schema):
        if node.get("type") == "array":
            assert "maxItems" in node, node
        if node.get("type") == "string" and "enum" not in node:
            assert "maxLength" in node, node
        if isinstance(node.get("additionalProperties"), dict):
            assert "maxProperties" in node, node
