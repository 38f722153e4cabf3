"""Scales the number of bookies by space and load, and the size of their volumes by used space. Pure.

Takes one step at a time, after the pool was quiet for a while, towards the number that `recommending` gives. Adds a
bookie at once if the space runs out, and after a window if the load is above its target; removes one only if no figure
needs it, and a drain would not be blocked. Expands a volume before it is full.
"""

from quire_operator.api.autoscaling import Measure
from quire_operator.api.bookie import Capacity
from quire_operator.api.conditions import Truth
from quire_operator.api.quantities import bytes_quantity, quantity_bytes
from quire_operator.plan import drain
from quire_operator.plan.actions import Action, Emit, ResizeClaim, SetReplicas
from quire_operator.plan.observation import ObservedBookie, ObservedClaim, PoolObservation
from quire_operator.plan.operations import seconds_of
from quire_operator.plan.recommending import recommended, waited

QUIET_S = 600.0
"""Time without any operation before the next step, so that the figures show the effect of the previous one."""
FILE_SYSTEM_SHARE = 0.93
"""Share of a volume that a bookie reports at least as its space. Less: the last expansion has not reached it yet."""


def replicas(observed: PoolObservation, space: Capacity | None, *, idle: bool) -> list[Action]:
    """Return a change of the number of bookies, and the event with its reason. `idle`: no operation runs or is due."""
    auto, now = observed.resource.spec.autoscale, observed.resource.spec.replicas
    found = recommended(observed, space)
    if auto is None or found is None or space is None or not idle or len(observed.bookies) != now:
        return []
    if not _is_quiet(observed):
        return []
    is_full = any(one.name is Measure.SPACE and (one.desired or 0) > now for one in found.figures)
    if found.desired > now and (is_full or waited(found.more_since, auto.scale_up_window, observed.now_s)):
        return [Emit("ScaledUp", f"{now + 1} bookies: {found.message}"), SetReplicas(now + 1)]
    quiet = auto.load is None or waited(found.fewer_since, auto.scale_down_window, observed.now_s)
    if found.desired < now and quiet and drain.blocker(observed) is None:
        return [Emit("ScaledDown", f"{now - 1} bookies: {found.message}"), SetReplicas(now - 1)]
    return []


def _is_quiet(observed: PoolObservation) -> bool:
    """Return whether no operation has run for QUIET_S, according to the last status."""
    for condition in observed.resource.status.conditions:
        if condition.type == "Quiesced" and condition.status is Truth.TRUE:
            return observed.now_s - seconds_of(condition.last_transition_time) >= QUIET_S
    return False


def growing_claims(observed: PoolObservation) -> list[Action]:
    """Return expansions of the ledger volumes of each bookie that is above the threshold."""
    auto = observed.resource.spec.storage.auto_expand
    if auto is None:
        return []
    step, most = quantity_bytes(auto.step), quantity_bytes(auto.max)
    found: list[Action] = []
    for pod, bookie in sorted(observed.bookies.items()):
        claims = [claim for claim in observed.claims if claim.pod == pod and claim.template.startswith("ledgers")]
        if not _is_full(bookie, auto.threshold) or not _have_grown(claims, bookie):
            continue
        sizes = {claim: min(most, quantity_bytes(claim.size) + step) for claim in claims}
        larger = [
            ResizeClaim(claim.name, bytes_quantity(size))
            for claim, size in sizes.items()
            if size > quantity_bytes(claim.size)
        ]
        if larger:
            changes = ", ".join(f"{action.name} to {action.size}" for action in larger)
            found += [Emit("VolumesGrow", f"{pod} is above {auto.threshold} %: {changes}"), *larger]
    return found


def cannot_grow(observed: PoolObservation) -> str | None:
    """Return why a volume that should grow cannot, or None."""
    auto = observed.resource.spec.storage.auto_expand
    if auto is None:
        return None
    full = {pod for pod, bookie in observed.bookies.items() if _is_full(bookie, auto.threshold)}
    ledgers = [claim for claim in observed.claims if claim.pod in full and claim.template.startswith("ledgers")]
    fixed = sorted(claim.name for claim in ledgers if not claim.expandable)
    if fixed:
        return f"storage.autoExpand: the storage class of {', '.join(fixed)} does not allow expansion: add bookies"
    at_most = sorted(claim.name for claim in ledgers if quantity_bytes(claim.size) >= quantity_bytes(auto.max))
    return f"storage.autoExpand: {', '.join(at_most)} reached max: raise it, or add bookies" if at_most else None


def _is_full(bookie: ObservedBookie, threshold: int) -> bool:
    return 100 * (bookie.total_bytes - bookie.free_bytes) >= threshold * bookie.total_bytes > 0


def _have_grown(claims: list[ObservedClaim], bookie: ObservedBookie) -> bool:
    """Return whether the claims can grow, and the last expansion is complete and known to the bookie."""
    capacities = [0 if claim.capacity is None else quantity_bytes(claim.capacity) for claim in claims]
    done = all(
        claim.expandable and has >= quantity_bytes(claim.size) for claim, has in zip(claims, capacities, strict=True)
    )
    return bool(claims) and done and bookie.total_bytes >= FILE_SYSTEM_SHARE * sum(capacities)
