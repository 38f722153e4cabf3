"""Builds Secrets that belong to a resource. Pure."""

import base64
from collections.abc import Mapping

from quire_operator.api.shared import Metadata
from quire_operator.builders import Manifest
from quire_operator.builders.naming import OUR_LABELS, owner_reference


def encoded(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the data of a Secret with these values."""
    return {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}


def owned_secret(owner_kind: str, owner: Metadata, name: str, texts: Mapping[str, str]) -> Manifest:
    """Return a Secret with these values, which Kubernetes deletes with its owner."""
    metadata = {
        "name": name,
        "namespace": owner.namespace,
        "labels": dict(OUR_LABELS),
        "ownerReferences": [owner_reference(owner_kind, owner)],
    }
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": encoded(texts)}
