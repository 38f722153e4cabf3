"""Finds resources, Quire pods, and bookies by id. Reads only."""

from typing import Any

from quire_operator.api import API_VERSION
from quire_operator.api.declared import DECLARED_KINDS
from quire_operator.builders import Manifest, ReadManifest
from quire_operator.builders.naming import AUTO_RECOVERY, BOOKIE, FIELD_MANAGER
from quire_operator.cluster.paths import bookie_path, collection, managed_ledger_path, object_path
from quire_operator.errors import KubeError, OperatorError, UnreachableError
from quire_operator.kubectl.access import Cluster, Response

OURS = f"app.kubernetes.io/managed-by={FIELD_MANAGER}"
_PART = "app.kubernetes.io/name"
_OWNER = "app.kubernetes.io/instance"


async def resources(cluster: Cluster, kind: str, *, everywhere: bool = False) -> list[Manifest]:
    """Return all Bookies or ManagedLedgers of the namespace, or of all. KubeError, e.g. if the CRDs are missing."""
    return await cluster.list(collection(API_VERSION, kind, None if everywhere else cluster.namespace))


async def declared_resources(cluster: Cluster, *, everywhere: bool = False) -> list[Manifest]:
    """Return the resources that declare objects of brokers; none of kinds that are not installed or not allowed."""
    found: list[Manifest] = []
    for kind in DECLARED_KINDS:
        try:
            found += await resources(cluster, kind, everywhere=everywhere)
        except KubeError as error:
            if error.status not in (403, 404):
                raise
    return found


async def resource(cluster: Cluster, name: str) -> Manifest | None:
    """Return a resource by `bookie/pool`, `topic/placed`, or a Bookie or ManagedLedger by `pool`. OperatorError."""
    kind, _, rest = name.rpartition("/")
    paths = {"bookie": bookie_path, "managedledger": managed_ledger_path}
    kind = kind.lower().removesuffix("s")
    if kind:
        declared = next((one for one in DECLARED_KINDS if one.lower() == kind), None)
        if declared is not None:
            return await cluster.get(object_path(API_VERSION, declared, cluster.namespace, rest))
        if kind not in paths:
            return None
        return await cluster.get(paths[kind](cluster.namespace, rest))
    found = [one for path in paths.values() if (one := await cluster.get(path(cluster.namespace, rest))) is not None]
    if len(found) > 1:
        raise OperatorError(f"{name} is a Bookie and a ManagedLedger; use bookie/{name} or managedledger/{name}")
    return found[0] if found else None


async def pods(cluster: Cluster, part: str | None = None) -> list[Manifest]:
    """Return the Quire pods of the namespace, sorted by name; of one part (bookie, broker, autorecovery), or all."""
    selector = OURS if part is None else f"{OURS},{_PART}=quire-{part}"
    path = collection("v1", "Pod", cluster.namespace)
    return sorted(await cluster.list(path, selector), key=lambda pod: str(pod["metadata"]["name"]))


async def pod(cluster: Cluster, name: str) -> Manifest | None:
    """Return any pod by name, or None."""
    return await cluster.get(object_path("v1", "Pod", cluster.namespace, name.removeprefix("pod/")))


async def events_of(cluster: Cluster, kind: str, name: str) -> list[Manifest]:
    """Return the events of an object."""
    path = collection("v1", "Event", cluster.namespace)
    return [
        event
        for event in await cluster.list(path)
        if event["involvedObject"].get("kind") == kind and event["involvedObject"].get("name") == name
    ]


def part_of(pod_: ReadManifest) -> str:
    """Return bookie, broker or autorecovery; empty for a pod that is not Quire's."""
    name = str(pod_["metadata"].get("labels", {}).get(_PART, ""))
    return name.removeprefix("quire-") if name.startswith("quire-") else ""


def is_ready(pod_: ReadManifest) -> bool:
    """Return whether the pod accepts requests."""
    conditions = (pod_.get("status") or {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def bookie_id(cluster: Cluster, name: str) -> str:
    """Return the id of the bookie in a pod, or the id itself. OperatorError if it is not known."""
    known: dict[str, str] = {}
    for one in await resources(cluster, "Bookie"):
        for row in (one.get("status") or {}).get("bookies", ()):
            if row.get("id"):
                known[row["pod"]] = row["id"]
    name = name.removeprefix("pod/")
    if name in known:
        return known[name]
    if name in known.values():
        return name
    if any(one["metadata"]["name"] == name for one in await pods(cluster)):
        raise OperatorError(
            f"the id of the bookie in {name} is not known yet: the operator has not reached it so far; start it first"
        )
    raise OperatorError(
        f"{name} is neither a pod nor a bookie of namespace {cluster.namespace}; known bookies: "
        + (", ".join(f"{pod_} ({id_})" for pod_, id_ in sorted(known.items())) or "none")
    )


async def ask_cluster(
    cluster: Cluster,
    path: str,
    *,
    method: str = "GET",
    body: ReadManifest | None = None,
    parts: tuple[str, ...] = (BOOKIE, AUTO_RECOVERY),
) -> Response:
    """Send a request to any process that can serve it for the cluster, ready pods first. Raises OperatorError."""
    errors: list[str] = []
    for part in parts:
        found = await pods(cluster, part)
        for one in sorted(found, key=lambda each: not is_ready(each)):
            try:
                answer = await cluster.ask_pod(one, path, method=method, body=body)
            except (KubeError, UnreachableError) as error:
                errors.append(str(error))
                continue
            if answer.status < 500:
                return answer
            errors.append(f"{one['metadata']['name']}: {reason_of(answer)}")
    if not errors:
        raise OperatorError(f"no Quire pod in namespace {cluster.namespace}; choose another one with -n")
    raise OperatorError("no pod responds: " + "; ".join(errors[:3]))


def reason_of(response: Response) -> str:
    """Return why a process refused a request."""
    body: Any = response.body
    reason = body.get("reason") if isinstance(body, dict) else body
    return f"HTTP {response.status}: {reason}"


def expect(response: Response) -> Any:
    """Return the body of a successful response. Raises OperatorError with the reason otherwise."""
    if response.status >= 300:
        raise OperatorError(reason_of(response))
    return response.body
