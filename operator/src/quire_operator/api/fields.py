"""Building blocks of the resource models: the base class, CEL rules, and fields with the API server's extensions.

Has no defaults of particular resources. All lengths are bounded, because the API server estimates the cost of a CEL
rule from the bounds of its inputs and refuses a CRD above its limit.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, StringConstraints
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema

from quire_operator.api.quantities import DURATION_PATTERN, QUANTITY_PATTERN, VALUE_LENGTH_MAX


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule of a CRD: an object for which `rule` is false is refused with `message`.

    A rule that names `oldSelf` is a transition rule, evaluated only on updates. `field` is the path in the error,
    relative to the model that has the rule (`.storage`).
    """

    rule: str
    message: str
    field: str = ""

    def rendered(self) -> dict[str, str]:
        """Return the rule as in `x-kubernetes-validations`."""
        found = {"rule": self.rule, "message": self.message}
        return found | ({"fieldPath": self.field} if self.field else {})


def validated_by(*rules: Rule) -> dict[str, Any]:
    """Return rules for a single field as `json_schema_extra`; `self` is the field's value."""
    return {"x-kubernetes-validations": [rule.rendered() for rule in rules]}


class ApiModel(BaseModel):
    """A part of a resource: camelCase in manifests, immutable, ignores unknown fields.

    The API server prunes unknown fields before the operator reads them. They are ignored here, too, so that a newer CRD
    does not stop an older operator.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)
    RULES: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        if cls.RULES:
            schema |= validated_by(*cls.RULES)
        return schema

    def plain(self) -> dict[str, Any]:
        """Return the manifest: camelCase, without unset fields."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def section(kind: type[ApiModel], description: str, rules: tuple[Rule, ...] = ()) -> Any:
    """Return a field whose default is the part with all of its defaults.

    In the CRD the default is written out with all nested defaults, because the API server applies the rules to a
    default before it fills in nested ones.
    """
    extra: dict[str, Any] = {"default": _without_empty(kind().plain())}
    if rules:
        extra |= validated_by(*rules)
    return Field(default_factory=kind, description=description, json_schema_extra=extra)


def _without_empty(value: Any) -> Any:
    """Remove nested empty maps and lists."""
    if not isinstance(value, dict):
        return value
    found = {key: _without_empty(inside) for key, inside in value.items()}
    return {key: inside for key, inside in found.items() if inside not in ({}, [])}


def part(kind: type[ApiModel], description: str) -> Any:
    """Return a field whose default is the part with its defaults, in the operator only, not in the CRD."""
    return Field(default_factory=kind, description=description)


def keyed(by: str, at_most: int, description: str) -> Any:
    """Return a list field whose items are identified by one of their fields, unique in the API server."""
    marks: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [by]}
    return Field(default=(), max_length=at_most, description=description, json_schema_extra=marks)


def names(at_most: int, description: str, default: tuple[str, ...] = ()) -> Any:
    """Return a list field of unique strings."""
    return Field(
        default=default,
        max_length=at_most,
        description=description,
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


def _as_text(value: object) -> object:
    """Convert a plain number to text, as quantities may be written without quotes."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Quantity = Annotated[str, StringConstraints(pattern=QUANTITY_PATTERN, max_length=VALUE_LENGTH_MAX)]
"""Bytes as Kubernetes writes them: `500Mi`, `2Gi`, `1T`."""

Duration = Annotated[str, StringConstraints(pattern=DURATION_PATTERN, max_length=VALUE_LENGTH_MAX)]
"""Hours, minutes, seconds: `168h`, `1h30m`, `500ms`."""

Percent = Annotated[int, Field(ge=0, le=100)]
"""Percentage of a total."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", min_length=1, max_length=253)]
"""The name of another object in the same namespace."""

Label = Annotated[str, StringConstraints(max_length=253)]
"""Key or value of a label or an annotation, or a short text."""

Message = Annotated[str, StringConstraints(max_length=4096)]
"""A human-readable sentence."""

Timestamp = Annotated[
    str, WithJsonSchema({"type": "string", "format": "date-time"}), StringConstraints(min_length=1, max_length=64)
]
"""RFC 3339, in UTC."""

Resource = Annotated[str, BeforeValidator(_as_text), WithJsonSchema({"x-kubernetes-int-or-string": True})]
"""An amount of cpu, memory or another resource."""

Whole = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
"""A count that may be large."""

AnyObject = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""An object that the API server stores unchanged and validates elsewhere."""
