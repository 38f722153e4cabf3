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
from quire_operator.plan.operations import Move, begun, moved, waiting
from quire_operator.plan.seen import ClaimSeen, PoolSeen


def template_sizes(templates: tuple[Manifest, ...] | list[Manifest]) -> dict[str, int]:
    """Return the size in bytes by claim template."""
    return {
        template["metadata"]["name"]: quantity_bytes(template["spec"]["resources"]["requests"]["storage"])
        for template in templates
    }


def is_wanted(seen: PoolSeen, wanted: list[Manifest]) -> bool:
    """Return whether claims, or claim templates of the existing StatefulSet, are smaller or fewer than wanted."""
    return seen.stateful_set is not None and (bool(too_small(seen, wanted)) or _is_behind(seen, wanted))


def _is_behind(seen: PoolSeen, wanted: list[Manifest]) -> bool:
    """Return whether the StatefulSet must be recreated."""
    if seen.stateful_set is None:
        return False
    there = template_sizes(seen.stateful_set.claim_templates)
    return any(size > there.get(name, 0) for name, size in template_sizes(wanted).items())


def blocker(seen: PoolSeen, wanted: list[Manifest]) -> str | None:
    """Return why the claims cannot grow; None if they can, or have grown."""
    fixed = sorted(claim.name for claim in too_small(seen, wanted) if not claim.expandable)
    if not fixed:
        return None
    names = ", ".join(fixed)
    return f"the storage class of {names} does not allow expansion: restore the old size, or create a new pool"


def too_small(seen: PoolSeen, wanted: list[Manifest]) -> list[ClaimSeen]:
    """Return bound claims that request less than wanted. The API server resizes only bound claims, so others wait."""
    sizes = template_sizes(wanted)
    bound = [claim for claim in seen.claims if claim.capacity is not None]
    return [claim for claim in bound if quantity_bytes(claim.size) < sizes.get(claim.template, 0)]


def begin(seen: PoolSeen) -> Operation:
    """Begin an expansion."""
    return begun(OperationType.EXPAND, Step.RESIZING_CLAIMS, seen.now_s)


def advance(operation: Operation, seen: PoolSeen, wanted: list[Manifest]) -> Move:
    """Advance an expansion."""
    if operation.step is Step.RESIZING_CLAIMS:
        return _resizing(operation, seen, wanted)
    there = seen.stateful_set
    if operation.step is Step.ORPHANING:
        if there is None:
            return Move(moved(operation, Step.RECREATING, seen.now_s, "recreating the StatefulSet around its pods"))
        if not _is_behind(seen, wanted):
            return Move(None)
        return Move(operation, () if there.deleting else (DeleteStatefulSet(there.name, there.uid, orphan=True),))
    # Recreating: it is applied with the other children.
    return Move(operation if there is None or not there.current else None)


def _resizing(operation: Operation, seen: PoolSeen, wanted: list[Manifest]) -> Move:
    reason = blocker(seen, wanted)
    if reason is not None:
        return Move(waiting(operation, reason))
    sizes = {template["metadata"]["name"]: template["spec"]["resources"]["requests"]["storage"] for template in wanted}
    small = too_small(seen, wanted)
    if small:
        return Move(operation, tuple(ResizeClaim(claim.name, sizes[claim.template]) for claim in small))
    if not _is_behind(seen, wanted):
        return Move(None)
    # No need to wait for the resize: volumes grow while the pods run, and the new templates are only for new bookies.
    return Move(moved(operation, Step.ORPHANING, seen.now_s, "deleting the StatefulSet; its pods keep running"))
