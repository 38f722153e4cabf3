"""Generates the CRDs from the models: `python -m quire_operator.api.crds --check|--write [FOLDER]`.

The files in `crds/` at the top level, and their copy in the chart, are committed. A test fails if they are stale. Do
not edit them by hand.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from quire_operator.api import GROUP, VERSION
from quire_operator.api.bookie import Bookie
from quire_operator.api.client_role import ClientRole
from quire_operator.api.fields import ApiModel
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.structural import structural_schema
from quire_operator.api.tenant import Tenant
from quire_operator.api.topic import TopicResource
from quire_operator.api.topic_namespace import TopicNamespace

FOLDER = Path(__file__).resolve().parents[4] / "crds"
CHART_FOLDER = FOLDER.parent / "charts" / "quire" / "files" / "crds"
"""A copy, because a chart can only read its own files."""
_HEAD = "# Generated from quire_operator.api by `python -m quire_operator.api.crds --write`; do not edit.\n"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; with a priority above 0 only under `-o wide`."""

    name: str
    kind: str
    path: str
    priority: int = 0
    help: str = ""

    def rendered(self) -> dict[str, Any]:
        """Return the column as in a CRD."""
        found: dict[str, Any] = {"name": self.name, "type": self.kind, "jsonPath": self.path}
        if self.help:
            found["description"] = self.help
        return found | ({"priority": self.priority} if self.priority else {})


@dataclass(frozen=True, slots=True)
class Kind:
    """A CRD: its model, names and columns."""

    model: type[ApiModel]
    kind: str
    plural: str
    short: tuple[str, ...]
    columns: tuple[Column, ...]
    scale: dict[str, str] | None = None


def _truth(condition: str) -> str:
    return f'.status.conditions[?(@.type=="{condition}")].status'


AGE = Column("Age", "date", ".metadata.creationTimestamp")
STATE = (
    Column("Ready", "string", _truth("Ready")),
    Column("Synced", "string", _truth("Synced"), help="The brokers have the object as it is declared."),
)
REASON = (
    Column("Ledger", "string", ".spec.managedLedgerRef.name", 1),
    Column("Reverted", "date", ".status.reverted.at", 1, help="When a change by others was last reverted."),
    Column("Reason", "string", '.status.conditions[?(@.type=="Ready")].message', 1),
    AGE,
)

KINDS = (
    Kind(
        Bookie,
        "Bookie",
        "bookies",
        ("bk",),
        (
            Column("Phase", "string", ".status.phase"),
            Column("Desired", "integer", ".spec.replicas"),
            Column("Ready", "integer", ".status.ready"),
            Column("Writable", "integer", ".status.writable"),
            Column("Safe", "string", _truth("FullyReplicated"), help="Every ledger has all of its replicas."),
            Column("Lacking", "integer", ".status.underReplicated.count", help="Under-replicated ledgers."),
            Column(
                "Unreadable",
                "integer",
                ".status.unrecoverable",
                help="Ledgers with entries that no replica can serve.",
            ),
            Column("Used%", "integer", ".status.capacity.usedPercent"),
            Column("Lost", "integer", ".status.lost", 1, help="Bookies whose volumes are lost."),
            Column("Days", "integer", ".status.capacity.daysToFull", 1, help="Days until full at the recent rate."),
            Column("Operation", "string", ".status.operation.type", 1),
            Column("Step", "string", ".status.operation.step", 1),
            Column("Reason", "string", '.status.conditions[?(@.type=="Ready")].message', 1),
            AGE,
        ),
        {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    ),
    Kind(
        ManagedLedger,
        "ManagedLedger",
        "managedledgers",
        ("ml",),
        (
            Column("Namespace", "string", ".spec.namespace"),
            Column("State", "string", ".status.state"),
            Column("Ready", "string", _truth("Ready")),
            Column("Safe", "string", _truth("FullyReplicated"), help="Every ledger has all of its replicas."),
            Column("Desired", "integer", ".spec.brokers.replicas", help="Declared brokers."),
            Column("Brokers", "integer", ".status.ready", help="Brokers that respond."),
            Column("Topics", "integer", ".status.topicCount"),
            Column("Backlog", "integer", ".status.backlog", help="Backlog of the slowest cursor, in entries."),
            Column("Service", "string", ".status.serviceUrl", 1),
            Column("Reason", "string", '.status.conditions[?(@.type=="Ready")].message', 1),
            AGE,
        ),
        {
            "specReplicasPath": ".spec.brokers.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    ),
    Kind(
        Tenant,
        "Tenant",
        "tenants",
        ("tnt",),
        (
            Column("Tenant", "string", ".status.tenant"),
            *STATE,
            Column("Namespaces", "integer", ".status.namespaces"),
            Column("Admins", "integer", ".status.adminRoles", 1, help="Roles that administer the tenant."),
            *REASON,
        ),
    ),
    Kind(
        TopicNamespace,
        "TopicNamespace",
        "topicnamespaces",
        ("tns",),
        (
            Column("Namespace", "string", ".spec.namespace"),
            *STATE,
            Column("Topics", "integer", ".status.topics"),
            Column("Backlog", "integer", ".status.backlog", help="Largest backlog of a subscription, in entries."),
            Column("Bytes", "integer", ".status.sizeBytes", 1),
            *REASON,
        ),
    ),
    Kind(
        TopicResource,
        "Topic",
        "topics",
        ("tp",),
        (
            Column("Topic", "string", ".status.topic"),
            *STATE,
            Column("Partitions", "integer", ".status.partitions"),
            Column("Producers", "integer", ".status.producers"),
            Column("Subscriptions", "integer", ".status.subscriptions", 1),
            Column("Backlog", "integer", ".status.backlog", help="Largest backlog of a subscription, in entries."),
            Column("Bytes", "integer", ".status.sizeBytes", 1),
            *REASON,
        ),
    ),
    Kind(
        ClientRole,
        "ClientRole",
        "clientroles",
        ("crole",),
        (
            Column("Role", "string", ".status.role"),
            *STATE,
            Column("Permissions", "integer", ".status.permissions", help="Declared permissions that are granted."),
            Column("Secret", "string", ".status.tokenSecret"),
            Column("Expires", "date", ".status.tokenExpiresAt", 1, help="When the token in the Secret expires."),
            *REASON,
        ),
    ),
)


def crd(kind: Kind) -> dict[str, Any]:
    """Return the manifest of the CustomResourceDefinition."""
    subresources: dict[str, Any] = {"status": {}}
    if kind.scale is not None:
        subresources["scale"] = kind.scale
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": list(kind.short),
                "categories": ["quire"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root_schema(kind.model)},
                    "subresources": subresources,
                    "additionalPrinterColumns": [column.rendered() for column in kind.columns],
                }
            ],
        },
    }


def _root_schema(model: type[ApiModel]) -> dict[str, Any]:
    """Return the schema of the root, where `metadata` may have only a type; the API server defines the rest."""
    schema = structural_schema(model)
    for name in ("apiVersion", "kind"):
        schema["properties"][name] = {"type": "string"}
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


def rendered(kind: Kind) -> str:
    """Return the text of a CRD's file."""
    return _HEAD + yaml.safe_dump(crd(kind), sort_keys=True, width=120, allow_unicode=True)


def files(folder: Path) -> dict[Path, str]:
    """Return the text of each file in a folder."""
    return {folder / f"{kind.plural}.{GROUP}.yaml": rendered(kind) for kind in KINDS}


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or report stale ones (exit code 1)."""
    parser = argparse.ArgumentParser(
        prog="python -m quire_operator.api.crds", description="Generate the CRDs from the models."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="exit code 1 if a file differs from the models")
    what.add_argument("--write", action="store_true", help="write the files")
    parser.add_argument("folder", nargs="?", type=Path, help="default: crds/ and the chart's copy")
    given = parser.parse_args(arguments)
    folders = [FOLDER, CHART_FOLDER] if given.folder is None else [given.folder]
    wanted = {path: text for folder in folders for path, text in files(folder).items()}
    if given.write:
        for path, text in wanted.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        print(f"{path}: stale; run `python -m quire_operator.api.crds --write`", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
