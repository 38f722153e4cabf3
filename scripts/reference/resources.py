"""The resources of Kubernetes, field by field, from the schemas of the CRDs."""

import json
from collections.abc import Iterator
from typing import Any

from quire_operator.api.crds import KINDS, crd
from scripts.reference.tables import GENERATED, table

_INTRODUCTION = """
The fields of the resources, as `kubectl explain` shows them. `[]` is an entry of a list, `{}` the value of a key.
[Kubernetes](../kubernetes/README.md) explains their use, with examples.
"""


def page() -> str:
    """Return the page."""
    lines = ["# Reference of the Kubernetes resources", GENERATED, _INTRODUCTION]
    for kind in KINDS:
        manifest = crd(kind)
        names = manifest["spec"]["names"]
        version = manifest["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        short = ", ".join(f"`{name}`" for name in names.get("shortNames", ()))
        lines += [f"## {kind.kind}", ""]
        lines += [
            f"`{manifest['spec']['group']}/{version['name']}`; `kubectl get {names['plural']}`, short {short}.",
            "",
        ]
        for part in ("spec", "status"):
            lines += [f"### {part} of {kind.kind}", ""]
            rows = _fields(schema["properties"][part], "")
            lines += [*table(("field", "type", "default", "description"), rows), ""]
    return "\n".join(lines)


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each field below a schema, depth first."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        default = json.dumps(field["default"]) if "default" in field else "required" if name in required else ""
        yield f"`{here}`", _type(field), f"`{default}`" if "default" in field else default, field.get("description", "")
        inner = field
        while True:
            if inner.get("type") == "array":
                inner, here = inner["items"], f"{here}[]"
            elif isinstance(inner.get("additionalProperties"), dict):
                inner, here = inner["additionalProperties"], f"{here}{{}}"
            else:
                break
        yield from _fields(inner, here)


def _type(field: dict[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{one}`" for one in field["enum"])
    kind = str(field.get("type") or ("integer or string" if field.get("x-kubernetes-int-or-string") else "any"))
    bounds = [f"{sign} {field[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in field]
    return " ".join([kind, *bounds])
