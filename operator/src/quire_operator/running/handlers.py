"""The handlers that kopf calls. Each only indexes, or finds what an event concerns and enqueues it; none keeps state.

kopf owns the watches: it lists and watches the resources and their children, resumes a watch that ends, lists again
after 410 Gone, logs in again after 401, and calls no handler before every resource is indexed. It writes nothing:
no handler here needs a finalizer, progress or diffs, and the storages of these write nothing.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import kopf

from quire_operator.api import GROUP, VERSION
from quire_operator.api.declared import DECLARED_KINDS
from quire_operator.builders import Manifest
from quire_operator.builders.naming import FIELD_MANAGER
from quire_operator.cluster.kube import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S
from quire_operator.cluster.memory import Resources
from quire_operator.running.wakes import Matters, Wakes
from quire_operator.running.watch_session import login_with

RESOURCES = {
    "Bookie": "bookies",
    "ManagedLedger": "managedledgers",
    **{kind: f"{kind.lower()}s" for kind in DECLARED_KINDS},
}
CHILDREN = {
    "StatefulSet": ("apps", "v1", "statefulsets"),
    "Deployment": ("apps", "v1", "deployments"),
    "PodDisruptionBudget": ("policy", "v1", "poddisruptionbudgets"),
    "ConfigMap": ("", "v1", "configmaps"),
    "Service": ("", "v1", "services"),
    "ServiceAccount": ("", "v1", "serviceaccounts"),
    "Pod": ("", "v1", "pods"),
    "Job": ("batch", "v1", "jobs"),
}
MANAGED_LABEL = "app.kubernetes.io/managed-by"
FINALIZER_OF_NONE = f"{GROUP}/unused"
"""kopf removes its finalizer from every object that needs none, so it must be the name of no other program's."""
WATCH_S = 240
LIST_ITEMS = 100
"""kopf holds a whole page in memory until each of its objects was handled."""
WORKER_IDLE_S = 0.2
"""A worker keeps the last event of its object for so long."""


class NoDiffs(kopf.DiffBaseStorage):
    """Remembers no former state of an object: no handler compares it. The default writes an annotation."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:
        """Return nothing to compare; the default copies the whole object at each event."""
        return kopf.BodyEssence({})

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Return that there is no former state."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Write nothing."""


class NoProgress(kopf.ProgressStorage):
    """Remembers no progress of handlers: each runs once for each event. The default writes annotations."""

    def fetch(self, *, key: kopf.HandlerId, body: kopf.Body) -> kopf.ProgressRecord | None:
        """Return that there is no progress."""
        return None

    def store(self, *, key: kopf.HandlerId, record: kopf.ProgressRecord, body: kopf.Body, patch: kopf.Patch) -> None:
        """Write nothing."""

    def purge(self, *, key: kopf.HandlerId, body: kopf.Body, patch: kopf.Patch) -> None:
        """Write nothing."""

    def touch(self, *, body: kopf.Body, patch: kopf.Patch, value: str | None) -> None:
        """Write nothing."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        """Return the object: nothing was added to it."""
        return essence


def configure(settings: kopf.OperatorSettings) -> None:
    """Set up kopf: no writes, bounded requests, and no scan for CRDs and namespaces, which needs rights everywhere."""
    settings.persistence.finalizer = FINALIZER_OF_NONE
    settings.persistence.diffbase_storage = NoDiffs()
    settings.persistence.progress_storage = NoProgress()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.networking.request_timeout = REQUEST_TIMEOUT_S
    settings.networking.connect_timeout = CONNECT_TIMEOUT_S
    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = WATCH_S + REQUEST_TIMEOUT_S
    settings.watching.chunk_size = LIST_ITEMS
    settings.queueing.idle_timeout = WORKER_IDLE_S
    for place in CHILDREN.values():
        settings.watching.label_selectors[place] = f"{MANAGED_LABEL}={FIELD_MANAGER}"
    settings.process.ultimate_exiting_timeout = None  # the pod's grace period ends the process


def register(registry: kopf.OperatorRegistry, kubeconfig: str | None) -> None:
    """Add all handlers but that of the startup, which calls `start`. They expect `wakes` in kopf's memo."""
    of_children = frozenset(plural for _, _, plural in CHILDREN.values())
    kopf.on.login(registry=registry)(login_with(kubeconfig, of_children))
    for kind, plural in RESOURCES.items():
        kopf.index(GROUP, VERSION, plural, id=plural, registry=registry)(index)
        kopf.on.event(GROUP, VERSION, plural, param=kind, registry=registry)(resource_event)
    for kind, place in CHILDREN.items():
        only = {MANAGED_LABEL: FIELD_MANAGER}
        kopf.on.event(*place, param=kind, labels=only, registry=registry)(child_event)


async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **indices: Any) -> None:
    """Set up kopf, and let the reconciliations of `memo.resources` read its indices."""
    configure(settings)
    resources: Resources = memo.resources
    resources.indices = {kind: indices[plural] for kind, plural in RESOURCES.items()}


async def index(namespace: str | None, name: str, body: kopf.Body, **_: Any) -> Mapping[tuple[str, str], Manifest]:
    """Index a resource of ours as it is."""
    return {(namespace or "", name): dict(body)}


async def resource_event(
    event: kopf.RawEvent, body: kopf.Body, memo: kopf.Memo, param: str | None = None, **_: Any
) -> None:
    """Handle an event of a resource of ours. kopf's memo of the object has what mattered at the last event."""
    wakes: Wakes = memo.wakes
    kind = str(param)
    if event["type"] == "DELETED":
        await wakes.resource_gone(kind, body)
        return
    before: Matters | None = memo.get("matters")
    memo.matters = await wakes.resource(kind, body, before)


async def child_event(
    event: kopf.RawEvent, body: kopf.Body, memo: kopf.Memo, param: str | None = None, **_: Any
) -> None:
    """Handle an event of a child. An object that is listed for the second time shows that the watch was interrupted."""
    wakes: Wakes = memo.wakes
    kind = str(param)
    if event["type"] is None and memo.get("listed"):
        wakes.memory.applied.relisted(asyncio.get_running_loop().time())
    memo.listed = True
    group, version, _plural = CHILDREN[kind]
    await wakes.child(f"{group}/{version}".lstrip("/"), kind, body, gone=event["type"] == "DELETED")
