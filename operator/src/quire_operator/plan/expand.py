"""Larger or more volumes. Claim templates of a StatefulSet are immutable, so it is made anew around its pods. Pure.

    ResizingClaims -> Orphaning -> Recreating -> done

First the claims that exist are asked to grow, then the StatefulSet is deleted with its pods left running, then it is
applied with the new templates and adopts them. With more volumes the template of the pods differs too: a roll follows.
Claims can be too small below templates that are large enough: those of a pool that was deleted and is applied again
with more, or of a pod that was made just before the set went. They only grow.
"""

from quire_operator.api.operations import Operation, OperationType, Step
from quire_operator.api.quantities import quantity_bytes
from quire_operator.builders import Manifest
from quire_operator.plan.actions import DeleteStatefulSet, ResizeClaim
from quire_operator.plan.operations import Move, begun, moved, waiting
from quire_operator.plan.seen import ClaimSeen, PoolSeen


def template_sizes(templates: tuple[Manifest, ...] | list[Manifest]) -> dict[str, int]:
    """Bytes by claim template."""
    return {
        template["metadata"]["name"]: quantity_bytes(template["spec"]["resources"]["requests"]["storage"])
        for template in templates
    }


def is_wanted(seen: PoolSeen, wanted: list[Manifest]) -> bool:
    """Claims, or claim templates of the StatefulSet that is there, are smaller or fewer than wanted."""
    return seen.stateful_set is not None and (bool(too_small(seen, wanted)) or _is_behind(seen, wanted))


def _is_behind(seen: PoolSeen, wanted: list[Manifest]) -> bool:
    """The StatefulSet must be made anew."""
    if seen.stateful_set is None:
        return False
    there = template_sizes(seen.stateful_set.claim_templates)
    return any(size > there.get(name, 0) for name, size in template_sizes(wanted).items())


def blocker(seen: PoolSeen, wanted: list[Manifest]) -> str | None:
    """Why the claims cannot grow; None: they can, or have."""
    fixed = sorted(claim.name for claim in too_small(seen, wanted) if not claim.expandable)
    if not fixed:
        return None
    return f"the storage class of {', '.join(fixed)} cannot grow: set the size back, or make a new pool"


def too_small(seen: PoolSeen, wanted: list[Manifest]) -> list[ClaimSeen]:
    """Bound claims that ask for less than is wanted of them: the API server changes no other, which come later."""
    sizes = template_sizes(wanted)
    bound = [claim for claim in seen.claims if claim.capacity is not None]
    return [claim for claim in bound if quantity_bytes(claim.size) < sizes.get(claim.template, 0)]


def begin(seen: PoolSeen) -> Operation:
    """The first step."""
    return begun(OperationType.EXPAND, Step.RESIZING_CLAIMS, seen.now_s)


def advance(operation: Operation, seen: PoolSeen, wanted: list[Manifest]) -> Move:
    """One pass over an expansion."""
    if operation.step is Step.RESIZING_CLAIMS:
        return _resizing(operation, seen, wanted)
    there = seen.stateful_set
    if operation.step is Step.ORPHANING:
        if there is None:
            return Move(moved(operation, Step.RECREATING, seen.now_s, "making the StatefulSet anew around its pods"))
        if not _is_behind(seen, wanted):
            return Move(None)
        return Move(operation, () if there.deleting else (DeleteStatefulSet(there.name, there.uid, orphan=True),))
    # Recreating: applied with the children of this pass.
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
    # That they were asked is enough: the volumes grow while the pods run, and the new templates are for new bookies.
    return Move(moved(operation, Step.ORPHANING, seen.now_s, "deleting the StatefulSet, its pods stay"))
