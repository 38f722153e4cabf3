"""One pass over a pool from end to end: look, plan, do, write the status. Nothing is kept between two passes."""

from quire_operator.api.bookie import Bookie, BookieStatus
from quire_operator.cluster.applied import Applied
from quire_operator.cluster.applying import PoolActions
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.observing import observe_pool
from quire_operator.cluster.paths import bookie_path
from quire_operator.plan.actions import SetFinalizer
from quire_operator.plan.bookie import plan_bookie


async def reconcile_bookie(
    kube: Kube,
    http: BookieHttp,
    namespace: str,
    name: str,
    *,
    default_image: str,
    now_s: float,
    applied: Applied | None = None,
) -> float | None:
    """Seconds until the next pass; None when the resource is gone.

    `applied`: what former passes of this process applied; without it every child is applied anew. The status is
    written under the resourceVersion that was read. ConflictError then: what was done was right for what was seen, and
    the next pass sees more. OperatorError for what else went wrong.
    """
    seen = await observe_pool(kube, http, namespace, name, now_s)
    if seen is None:
        return None
    found = plan_bookie(seen, default_image)
    await PoolActions(kube, http, seen.resource, seen.hosts, now_s, applied or Applied()).perform(found.actions)
    if any(isinstance(action, SetFinalizer) for action in found.actions):
        return 0.0  # that moved the resourceVersion; the status is written in the pass that begins now
    if found.status != seen.resource.status:
        await _write_status(kube, seen.resource, found.status)
    return found.requeue_s


async def _write_status(kube: Kube, resource: Bookie, status: BookieStatus) -> None:
    """All of it, so that what only the former status had goes; the API server does not look at the spec in it."""
    path = f"{bookie_path(resource.meta.namespace, resource.meta.name)}/status"
    await kube.replace(path, resource.model_copy(update={"status": status}).plain())
