"""Writes the status of our resources."""

from quire_operator.api.bookie import Bookie, BookieStatus
from quire_operator.api.declared import DeclaredResource, DeclaredStatus
from quire_operator.api.managed_ledger import ManagedLedger, ManagedLedgerStatus
from quire_operator.cluster.kube import Kube


async def write_status(
    kube: Kube,
    path: str,
    resource: Bookie | ManagedLedger | DeclaredResource,
    status: BookieStatus | ManagedLedgerStatus | DeclaredStatus,
) -> bool:
    """Replace the whole status if it differs, so that former fields disappear. Return whether it differed.

    The API server ignores the spec in the request, and refuses another resourceVersion than the one that was read.
    """
    if status == resource.status:
        return False
    await kube.replace(f"{path}/status", resource.model_copy(update={"status": status}).plain())
    return True
