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
from quire_operator.plan.actions import DeleteStatefulSet, ResizeClaim
from quire_operator.plan.observation import ObservedClaim, PoolObservation
from quire_operator.plan.operations import Move, begun, moved, waiting


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
