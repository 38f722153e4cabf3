"""Converts a pydantic model to a structural schema, the subset of OpenAPI v3 that the API server accepts in a CRD.

References are inlined, `X or null` becomes X, titles and empty defaults are removed. A keyword that the API server
would refuse raises an error with its path.
"""

from collections.abc import Mapping
from typing import Any

from quire_operator.api.fields import ApiModel

_KEPT = frozenset(
    {
        *("type", "description", "default", "enum", "format", "pattern", "minLength", "maxLength"),
        *("minimum", "maximum", "minItems", "maxItems", "minProperties", "maxProperties", "required"),
        *("x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"),
        *("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-map-type"),
    }
)
_DROPPED = frozenset({"title", "$defs", "propertyNames"})
_REFERENCE = "#/$defs/"
_CHAIN_MAX = 40


class NotStructuralError(Exception):
    """A model cannot be expressed as a structural schema. The message names the path."""


def structural_schema(model: type[ApiModel]) -> dict[str, Any]:
    """Return the schema of a model as in a CRD. Raises NotStructuralError."""
    found = model.model_json_schema(by_alias=True, mode="validation")
    return _plain(found, found.get("$defs", {}), model.__name__, 0)


def _plain(node: Mapping[str, Any], defs: Mapping[str, Any], place: str, depth: int) -> dict[str, Any]:
    """Convert one node and all nodes below it."""
    if depth > _CHAIN_MAX:
        raise NotStructuralError(f"{place}: the schema contains itself")
    node = _resolved(node, defs, place)
    found: dict[str, Any] = {}
    for key, value in node.items():
        if key in _DROPPED or (key == "default" and value in (None, [])):
            continue
        if key == "properties":
            found[key] = {name: _plain(part, defs, f"{place}.{name}", depth + 1) for name, part in value.items()}
        elif key == "items":
            found[key] = _plain(value, defs, f"{place}[]", depth + 1)
        elif key == "additionalProperties":
            if isinstance(value, Mapping):
                found[key] = _plain(value, defs, f"{place}{{}}", depth + 1)
        elif key == "const":
            found["enum"] = [value]
        elif key in _KEPT:
            found[key] = list(value) if isinstance(value, tuple) else value
        else:
            raise NotStructuralError(f"{place}: {key} is not allowed in a structural schema")
    return found


def _resolved(node: Mapping[str, Any], defs: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Inline a node's reference or its only alternative. Keys of the node take precedence; rules are concatenated."""
    found = dict(node)
    while True:
        if "$ref" in found:
            target = defs[found.pop("$ref").removeprefix(_REFERENCE)]
        elif "anyOf" in found:
            kinds = [kind for kind in found.pop("anyOf") if kind.get("type") != "null"]
            if len(kinds) != 1:
                raise NotStructuralError(f"{place}: {len(kinds)} alternatives; one is allowed")
            target = kinds[0]
        else:
            return found
        rules = [*target.get("x-kubernetes-validations", ()), *found.get("x-kubernetes-validations", ())]
        found = {**target, **found}
        if rules:
            found["x-kubernetes-validations"] = rules
