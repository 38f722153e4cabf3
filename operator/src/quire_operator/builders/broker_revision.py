"""A revision of the brokers: everything with which their pods start, named by its digest. Pure.

Each revision has its own immutable ConfigMap, with the configuration file and the pod template. So a pod keeps its
configuration while another revision is tried, also when its process restarts, and the former template can be applied
again, even one that an earlier operator built.
"""

import hashlib
import json
from dataclasses import dataclass

from pydantic import ValidationError

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import MetadataStore
from quire_operator.builders import Manifest, ReadManifest
from quire_operator.builders.naming import BROKER, CONTAINER, child, child_name
from quire_operator.builders.pods import CONFIG_FILE

REVISION_FILE = "revision.json"
DIGEST_LENGTH = 10


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision. Equal names mean equal pods."""

    name: str
    """The digest."""
    config: str
    """The configuration file."""
    template: Manifest
    """The template of the pods."""
    store: MetadataStore
    """The metadata store that they use."""

    @property
    def ports(self) -> dict[str, int]:
        """The ports of the pods by name."""
        containers = self.template["spec"]["containers"]
        main: Manifest = next((one for one in containers if one.get("name") == CONTAINER), {})
        return {port["name"]: port["containerPort"] for port in main.get("ports", ()) if "name" in port}


def digest(template: Manifest, store: MetadataStore) -> str:
    """Return the name of a revision. The template has the digest of the configuration file among its annotations."""
    text = json.dumps({"template": template, "store": store.plain()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def config_map_name(owner: str, revision: str) -> str:
    """Return e.g. `orders-broker-5f3a01c2de`."""
    return f"{child_name(owner, BROKER)}-{revision}"


def config_map(resource: ManagedLedger, revision: Revision) -> Manifest:
    """Return the ConfigMap of a revision."""
    found = child("ConfigMap", "v1", "ManagedLedger", resource.meta, BROKER)
    found["metadata"] = found["metadata"] | {"name": config_map_name(resource.meta.name, revision.name)}
    kept = {"template": revision.template, "store": revision.store.plain()}
    return found | {
        "immutable": True,
        "data": {CONFIG_FILE: revision.config, REVISION_FILE: json.dumps(kept, sort_keys=True)},
    }


def parsed_revision(owner: str, manifest: ReadManifest) -> Revision | None:
    """Return the revision in a ConfigMap; None if it has none, as those of earlier versions."""
    name, data = manifest["metadata"]["name"], manifest.get("data") or {}
    prefix = config_map_name(owner, "")
    try:
        kept = json.loads(data[REVISION_FILE])
        store = MetadataStore.model_validate(kept["store"])
        found = Revision(name.removeprefix(prefix), data[CONFIG_FILE], kept["template"], store)
    except (KeyError, TypeError, ValueError, ValidationError):
        return None
    return found if name.startswith(prefix) else None
