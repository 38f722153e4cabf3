"""Plans larger or additional volumes. Claim templates are immutable: the StatefulSet is recreated. Pure.

    ResizingClaims -> Orphaning -> Recreating -> done

First the existing claims are resized, then the StatefulSet is deleted with its pods left running, then it is applied
with the new templates and adopts them. With additional volumes the pod template differs, too, so a roll follows. Claims
can be too small although the templates are large enough: if a deleted pool is created again with larger volumes, or if
a pod was created just before the StatefulSet was deleted. Claims only grow.
"""

from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.api.quantities import quantity_bytes
from quire_operator.builders import Manifest
from quire_operator.plan.actions import DeleteStatefulSet, Emit, ResizeClaim
from quire_operator.plan.observation import ObservedClaim, PoolObservation
from quire_operator.plan.operations import Move, begun, moved, waiting

GROWING = "VolumesGrow"
CLAIMS_NAMED = 5


def template_sizes(templates: tuple[Manifest, ...] | list[Manifest]) -> dict[str, int]:
    """Return the size in bytes by claim template."""
    return {
        template["metadata"]["name"]: quantity_bytes(template["spec"]["resources"]["requests"]["storage"])
        for template in templates
    }


def is_wanted(observed: PoolObservation, wanted: list[Manifest]) -> bool:
    """Return whether claims, or claim templates of the existing StatefulSet, are smaller or fewer than wanted."""
    return observed.stateful_set is not None and (bool(too_small(observed, wanted)) or _is_behind(observed, wanted))


def _is_behind(observed: PoolObservation, wanted: list[Manifest]) -> bool:
    """Return whether the StatefulSet must be recreated."""
    if observed.stateful_set is None:
        return False
    there = template_sizes(observed.stateful_set.claim_templates)
    return any(size > there.get(name, 0) for name, size in template_sizes(wanted).items())


def blocker(observed: PoolObservation, wanted: list[Manifest]) -> str | None:
    """Return why the claims cannot grow; None if they can, or have grown."""
    fixed = sorted(claim.name for claim in too_small(observed, wanted) if not claim.expandable)
    if not fixed:
        return None
    names = ", ".join(fixed)
    return f"the storage class of {names} does not allow expansion: restore the old size, or create a new pool"


def too_small(observed: PoolObservation, wanted: list[Manifest]) -> list[ObservedClaim]:
    """Return bound claims that request less than wanted. The API server resizes only bound claims, so others wait."""
    sizes = template_sizes(wanted)
    bound = [claim for claim in observed.claims if claim.capacity is not None]
    return [claim for claim in bound if quantity_bytes(claim.size) < sizes.get(claim.template, 0)]


def growing(observed: PoolObservation) -> list[ObservedClaim]:
    """Return claims whose volumes are still smaller than requested. The operation does not wait for them."""
    return [claim for claim in observed.claims if not claim.deleting and _is_small(claim)]


def _is_small(claim: ObservedClaim) -> bool:
    try:
        return claim.capacity is not None and quantity_bytes(claim.capacity) < quantity_bytes(claim.size)
    except ValueError:
        return False  # a storage driver may report a capacity in another form


def progress(observed: PoolObservation) -> str | None:
    """Return how far volumes have grown; None if all have their size."""
    small = growing(observed)
    if not small:
        return None
    bound = sum(claim.capacity is not None for claim in observed.claims)
    texts = [
        f"{claim.name} has {claim.capacity} of {claim.size}" + (f" ({claim.resize_note})" if claim.resize_note else "")
        for claim in sorted(small, key=lambda claim: claim.name)[:CLAIMS_NAMED]
    ]
    texts += [f"{len(small) - CLAIMS_NAMED} more"] if len(small) > CLAIMS_NAMED else []
    return f"{bound - len(small)} of {bound} volumes have their size; {', '.join(texts)}"


def failure(observed: PoolObservation) -> str | None:
    """Return why volumes do not grow although their class allows it, or None."""
    failed = [claim for claim in growing(observed) if claim.resize_failed]
    if not failed:
        return None
    names = ", ".join(sorted(claim.name for claim in failed)[:CLAIMS_NAMED])
    note = failed[0].resize_note or "no reason given"
    return f"the storage does not provide the size of {names}: {note}; correct the storage, Kubernetes tries again"


def ended_events(observed: PoolObservation) -> list[Emit]:
    """Return an event when the last volume has grown; the condition Reconciling showed the progress."""
    before = observed.resource.status.conditions
    grew = any(one.type == "Reconciling" and one.reason == GROWING for one in before)
    return [Emit("VolumesGrown", "all volumes have their size")] if grew and not growing(observed) else []


def begin(observed: PoolObservation) -> Operation:
    """Begin an expansion."""
    return begun(OperationType.EXPAND, Step.RESIZING_CLAIMS, observed.now_s)


def advance(operation: Operation, observed: PoolObservation, wanted: list[Manifest]) -> Move:
    """Advance an expansion."""
    if operation.step is Step.RESIZING_CLAIMS:
        return _resizing(operation, observed, wanted)
    there = observed.stateful_set
    if operation.step is Step.ORPHANING:
        if there is None:
            return Move(moved(operation, Step.RECREATING, observed.now_s, "recreating the StatefulSet around its pods"))
        if not _is_behind(observed, wanted):
            return Move(None)
        return Move(operation, () if there.deleting else (DeleteStatefulSet(there.name, there.uid, orphan=True),))
    # Recreating: it is applied with the other children.
    return Move(operation if there is None or not there.current else None)


def _resizing(operation: Operation, observed: PoolObservation, wanted: list[Manifest]) -> Move:
    reason = blocker(observed, wanted)
    if reason is not None:
        return Move(waiting(operation, reason))
    sizes = {template["metadata"]["name"]: template["spec"]["resources"]["requests"]["storage"] for template in wanted}
    small = too_small(observed, wanted)
    if small:
        return Move(operation, tuple(ResizeClaim(claim.name, sizes[claim.template]) for claim in small))
    if not _is_behind(observed, wanted):
        return Move(None)
    # No need to wait for the resize: volumes grow while the pods run, and the new templates are only for new bookies.
    return Move(moved(operation, Step.ORPHANING, observed.now_s, "deleting the StatefulSet; its pods keep running"))
