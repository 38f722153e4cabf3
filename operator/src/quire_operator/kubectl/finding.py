"""Finds what a person named: a resource, a pod of ours, a bookie by its id. Reads only."""

from typing import Any

from quire_operator.api import API_VERSION
from quire_operator.builders import Manifest, ReadManifest
from quire_operator.builders.naming import AUTO_RECOVERY, BOOKIE, FIELD_MANAGER
from quire_operator.cluster.paths import bookie_path, collection, managed_ledger_path, object_path
from quire_operator.errors import KubeError, OperatorError, UnreachableError
from quire_operator.kubectl.access import Cluster, Said

OURS = f"app.kubernetes.io/managed-by={FIELD_MANAGER}"
_PART = "app.kubernetes.io/name"
_OWNER = "app.kubernetes.io/instance"


async def resources(cluster: Cluster, kind: str, *, everywhere: bool = False) -> list[Manifest]:
    """All Bookies or ManagedLedgers of the namespace, or of all. KubeError: the CRDs may be missing."""
    return await cluster.list(collection(API_VERSION, kind, None if everywhere else cluster.namespace))


async def resource(cluster: Cluster, name: str) -> Manifest | None:
    """A resource as `bookie/pool`, `managedledger/orders`, or `pool` when only one kind has it. OperatorError."""
    kind, _, rest = name.rpartition("/")
    paths = {"bookie": bookie_path, "managedledger": managed_ledger_path}
    kind = kind.lower().removesuffix("s")
    if kind:
        if kind not in paths:
            return None
        return await cluster.get(paths[kind](cluster.namespace, rest))
    found = [one for path in paths.values() if (one := await cluster.get(path(cluster.namespace, rest))) is not None]
    if len(found) > 1:
        raise OperatorError(f"{name} is a Bookie and a ManagedLedger; say bookie/{name} or managedledger/{name}")
    return found[0] if found else None


async def pods(cluster: Cluster, part: str | None = None) -> list[Manifest]:
    """Our pods in the namespace, by name; of one part (bookie, broker, autorecovery), or all."""
    selector = OURS if part is None else f"{OURS},{_PART}=quire-{part}"
    path = collection("v1", "Pod", cluster.namespace)
    return sorted(await cluster.list(path, selector), key=lambda pod: str(pod["metadata"]["name"]))


async def pod(cluster: Cluster, name: str) -> Manifest | None:
    """A pod, of whomever."""
    return await cluster.get(object_path("v1", "Pod", cluster.namespace, name.removeprefix("pod/")))


async def events_of(cluster: Cluster, kind: str, name: str) -> list[Manifest]:
    """The events about an object."""
    path = collection("v1", "Event", cluster.namespace)
    return [
        event
        for event in await cluster.list(path)
        if event["involvedObject"].get("kind") == kind and event["involvedObject"].get("name") == name
    ]


def part_of(pod_: ReadManifest) -> str:
    """bookie, broker or autorecovery; empty for a pod that is none of ours."""
    name = str(pod_["metadata"].get("labels", {}).get(_PART, ""))
    return name.removeprefix("quire-") if name.startswith("quire-") else ""


def is_ready(pod_: ReadManifest) -> bool:
    """Whether it takes requests."""
    conditions = (pod_.get("status") or {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def bookie_id(cluster: Cluster, name: str) -> str:
    """The id of the bookie in a pod, or the id itself. OperatorError when nobody knows it."""
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
            f"the id of the bookie in {name} is not known yet: it has not been up since the operator looked"
        )
    raise OperatorError(
        f"{name} is neither a pod nor a bookie of namespace {cluster.namespace}; known: "
        + (", ".join(f"{pod_} ({id_})" for pod_, id_ in sorted(known.items())) or "none")
    )


async def ask_cluster(
    cluster: Cluster,
    path: str,
    *,
    method: str = "GET",
    body: ReadManifest | None = None,
    parts: tuple[str, ...] = (BOOKIE, AUTO_RECOVERY),
) -> Said:
    """Ask any process that can answer for the whole cluster: ready pods first. OperatorError with the refusals."""
    said: list[str] = []
    for part in parts:
        found = await pods(cluster, part)
        for one in sorted(found, key=lambda each: not is_ready(each)):
            try:
                answer = await cluster.ask_pod(one, path, method=method, body=body)
            except (KubeError, UnreachableError) as error:
                said.append(str(error))
                continue
            if answer.status < 500:
                return answer
            said.append(f"{one['metadata']['name']}: {reason_of(answer)}")
    if not said:
        raise OperatorError(f"there is no pod of Quire's in namespace {cluster.namespace} to ask; give -n")
    raise OperatorError("no pod answers: " + "; ".join(said[:3]))


def reason_of(said: Said) -> str:
    """Why a process refused."""
    body: Any = said.body
    reason = body.get("reason") if isinstance(body, dict) else body
    return f"HTTP {said.status}: {reason}"


def expect(said: Said) -> Any:
    """The body of an answer that did what was asked. OperatorError with the reason."""
    if said.status >= 300:
        raise OperatorError(reason_of(said))
    return said.body
