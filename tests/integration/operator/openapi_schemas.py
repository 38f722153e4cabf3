"""JSON schemas of everything that an API server serves, from its own OpenAPI, as kubeconform reads them.

No registry of schemas is asked: the server that is tested against knows best, our own resources too. Unknown fields are
refused, as the server itself refuses them where it is asked to be strict.
"""

import json
from pathlib import Path
from typing import Any

from tests.integration.operator.kube_api import KubeApi

LOCATION = "{{ .ResourceKind }}{{ .KindSuffix }}.json"
"""Of a schema below the folder: kind, group up to its first dot, version, in small letters."""


def write(kube: KubeApi, folder: Path) -> int:
    """Write them; how many."""
    count = 0
    for place in kube.get("/openapi/v3").expect()["paths"]:
        if not place.startswith(("api/", "apis/")) or place.count("/") < (1 if place.startswith("api/") else 2):
            continue
        schemas = kube.get(f"/openapi/v3/{place}").expect().get("components", {}).get("schemas", {})
        components = {"components": {"schemas": {name: _closed(schema) for name, schema in schemas.items()}}}
        for name, schema in schemas.items():
            for kind in schema.get("x-kubernetes-group-version-kind", ()):
                group = kind["group"].partition(".")[0]
                words = [kind["kind"], *([group] if group else []), kind["version"]]
                text = json.dumps({"$ref": f"#/components/schemas/{name}", **components})
                (folder / f"{'-'.join(words).lower()}.json").write_text(text)
                count += 1
    return count


def _closed(schema: Any) -> Any:
    """The schema without room for fields that it does not name."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not is_open:
        found["additionalProperties"] = False
    return found
