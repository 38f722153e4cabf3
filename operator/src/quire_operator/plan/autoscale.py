"""How many bookies there are, and how large their volumes, follows how full they are. Pure.

One step at a time, after everything was quiet for a while. More at the high watermark; fewer only when the pool with
one less would still be below the low one, and when a drain would not be blocked. A volume grows before it is full.
"""

from quire_operator.api.bookie import Capacity
from quire_operator.api.conditions import Truth
from quire_operator.api.quantities import bytes_quantity, quantity_bytes
from quire_operator.plan import drain
from quire_operator.plan.actions import Action, Emit, ResizeClaim, SetReplicas
from quire_operator.plan.operations import seconds_of
from quire_operator.plan.seen import BookieSeen, ClaimSeen, PoolSeen

QUIET_S = 600.0
"""So long nothing was under way: what a step changed shows in the figures by then."""
FILE_SYSTEM_SHARE = 0.93
"""Of a volume, that a bookie reports as its space at least: less means that it has not seen the last growth yet."""


def replicas(seen: PoolSeen, space: Capacity | None, *, idle: bool) -> list[Action]:
    """A changed number of bookies, with the event that says why. `idle`: nothing is under way or due."""
    auto, now = seen.resource.spec.autoscale, seen.resource.spec.replicas
    if auto is None or space is None or not idle or not _is_quiet(seen) or len(seen.bookies) != now:
        return []
    if space.used_percent >= auto.high_watermark and now < auto.max:
        why = f"{space.used_percent} % are used, highWatermark is {auto.high_watermark}"
        return [Emit("ScaledUp", f"{now + 1} bookies: {why}"), SetReplicas(now + 1)]
    # Equal volumes: with one bookie less there is that share less of space.
    would_be = 100 * space.used * now if now > 1 else 0
    fits = now > 1 and would_be < auto.low_watermark * space.total * (now - 1)
    if fits and now > auto.min and drain.blocker(seen) is None:
        why = f"{space.used_percent} % are used, with one bookie less still below lowWatermark {auto.low_watermark}"
        return [Emit("ScaledDown", f"{now - 1} bookies: {why}"), SetReplicas(now - 1)]
    return []


def _is_quiet(seen: PoolSeen) -> bool:
    """As the last status has it: since when nothing has been under way."""
    for condition in seen.resource.status.conditions:
        if condition.type == "Quiesced" and condition.status is Truth.TRUE:
            return seen.now_s - seconds_of(condition.last_transition_time) >= QUIET_S
    return False


def growing_claims(seen: PoolSeen) -> list[Action]:
    """Larger ledger volumes of each bookie that fills its own."""
    auto = seen.resource.spec.storage.auto_expand
    if auto is None:
        return []
    step, most = quantity_bytes(auto.step), quantity_bytes(auto.max)
    found: list[Action] = []
    for pod, bookie in sorted(seen.bookies.items()):
        claims = [claim for claim in seen.claims if claim.pod == pod and claim.template.startswith("ledgers")]
        if not _is_full(bookie, auto.threshold) or not _have_grown(claims, bookie):
            continue
        sizes = {claim: min(most, quantity_bytes(claim.size) + step) for claim in claims}
        larger = [
            ResizeClaim(claim.name, bytes_quantity(size))
            for claim, size in sizes.items()
            if size > quantity_bytes(claim.size)
        ]
        if larger:
            said = ", ".join(f"{action.name} to {action.size}" for action in larger)
            found += [Emit("VolumesGrow", f"{pod} is above {auto.threshold} %: {said}"), *larger]
    return found


def cannot_grow(seen: PoolSeen) -> str | None:
    """Why a volume that should grow does not; None: it does, or need not."""
    auto = seen.resource.spec.storage.auto_expand
    if auto is None:
        return None
    full = {pod for pod, bookie in seen.bookies.items() if _is_full(bookie, auto.threshold)}
    ledgers = [claim for claim in seen.claims if claim.pod in full and claim.template.startswith("ledgers")]
    fixed = sorted(claim.name for claim in ledgers if not claim.expandable)
    if fixed:
        return f"storage.autoExpand: the storage class of {', '.join(fixed)} cannot grow: add bookies"
    at_most = sorted(claim.name for claim in ledgers if quantity_bytes(claim.size) >= quantity_bytes(auto.max))
    return f"storage.autoExpand: {', '.join(at_most)} reached max: raise it, or add bookies" if at_most else None


def _is_full(bookie: BookieSeen, threshold: int) -> bool:
    return 100 * (bookie.total_bytes - bookie.free_bytes) >= threshold * bookie.total_bytes > 0


def _have_grown(claims: list[ClaimSeen], bookie: BookieSeen) -> bool:
    """They can grow, and what was asked for before is there and known to the bookie."""
    capacities = [0 if claim.capacity is None else quantity_bytes(claim.capacity) for claim in claims]
    done = all(
        claim.expandable and has >= quantity_bytes(claim.size) for claim, has in zip(claims, capacities, strict=True)
    )
    return bool(claims) and done and bookie.total_bytes >= FILE_SYSTEM_SHARE * sum(capacities)
