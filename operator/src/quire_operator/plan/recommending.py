"""Recommends a number of bookies by used space and by load, with the reason. Pure.

Each figure asks for a number: total load / target, rounded up, unless it is within a tenth of the present number. The
largest wins. A figure that is not known never makes a pool smaller. The recommendation is renewed once a minute. The
status keeps since when it has pointed up or down; the windows of the spec apply to that.
"""

import math
from collections.abc import Callable, Iterator

from quire_operator.api.autoscaling import Autoscale, AutoscaleFigure, AutoscaleStatus, Measure
from quire_operator.api.bookie import Capacity
from quire_operator.api.managed_ledger import BrokerLoad
from quire_operator.api.quantities import duration_s, quantity_bytes
from quire_operator.plan.observation import ObservedLoad, PoolObservation
from quire_operator.plan.operations import rfc3339, seconds_of

RENEWED_S = 60.0
"""Loads are those of the last minute, and the status is not written more often."""
TOLERANCE = 0.1
_UNITS = {
    Measure.ADDS: "adds per second and bookie",
    Measure.BYTES: "bytes per second and bookie",
    Measure.CPU: "thousandths of a core per bookie",
}


def recommended(observed: PoolObservation, space: Capacity | None) -> AutoscaleStatus | None:
    """Return the recommendation; that of the last minute if it still applies; None without `autoscale`."""
    auto, before, now = (
        observed.resource.spec.autoscale,
        observed.resource.status.autoscale,
        observed.resource.spec.replicas,
    )
    if auto is None:
        return None
    changed = observed.resource.status.observed_generation != observed.resource.meta.generation
    if not changed and not is_due(observed.now_s, before, now):
        return before
    figures = tuple(_figures(observed, auto, space, now))
    wished = [figure.desired for figure in figures if figure.desired is not None]
    largest = max(wished, default=now)
    if len(wished) < len(figures):
        largest = max(largest, now)
    desired = min(auto.max, max(auto.min, largest))
    same = before if before is not None and before.replicas == now else None
    at = rfc3339(observed.now_s)
    return AutoscaleStatus(
        desired=desired,
        message=_message(observed, auto, space, figures, now, largest),
        figures=figures,
        replicas=now,
        more_since=((same and same.more_since) or at) if desired > now else None,
        fewer_since=((same and same.fewer_since) or at) if desired < now else None,
        measured_at=at,
    )


def is_due(now_s: float, before: AutoscaleStatus | BrokerLoad | None, replicas: int) -> bool:
    """Return whether a recommendation is older than a minute, or for another number of pods."""
    if before is None or before.replicas != replicas:
        return True
    return not 0 <= now_s - seconds_of(before.measured_at) < RENEWED_S


def _figures(observed: PoolObservation, auto: Autoscale, space: Capacity | None, now: int) -> Iterator[AutoscaleFigure]:
    yield AutoscaleFigure(
        name=Measure.SPACE,
        current=None if space is None else space.used_percent,
        target=auto.high_watermark,
        desired=None if space is None else _by_space(auto, space, now),
    )
    load = auto.load
    if load is None:
        return
    targets: list[tuple[Measure, int | None, Callable[[ObservedLoad], float]]] = [
        (Measure.ADDS, load.adds, lambda one: one.adds),
        (Measure.BYTES, None if load.bytes is None else quantity_bytes(load.bytes), _bytes),
        (Measure.CPU, load.cpu_millicores, lambda one: 1000 * one.cpu_s),
    ]
    for measure, target, amount in targets:
        if target is not None:
            rates = [amount(load) / load.window_s for load in _loads(observed)]
            known = len(rates) == len(observed.bookies) == now
            yield AutoscaleFigure(
                name=measure,
                current=round(sum(rates) / now) if known and now else None,
                target=target,
                desired=by_load(sum(rates), target, now) if known else None,
            )


def _bytes(load: ObservedLoad) -> float:
    return load.added_bytes + load.read_bytes


def _loads(observed: PoolObservation) -> list[ObservedLoad]:
    return [one.load for one in observed.bookies.values() if one.load is not None and one.load.window_s > 0]


def _by_space(auto: Autoscale, space: Capacity, now: int) -> int:
    """Return one more at the high watermark, one less if it would still be below the low one, else the same."""
    if space.used_percent >= auto.high_watermark:
        return now + 1
    # Assumes equal volumes: each bookie has the same share of the space.
    would_be = 100 * space.used * now if now > 1 else 0
    return now - 1 if now > 1 and would_be < auto.low_watermark * space.total * (now - 1) else now


def by_load(total: float, target: int, now: int) -> int:
    """Return how many bookies a total load asks for, at least 1. Within a tenth of what is there nothing changes."""
    wanted = max(1, math.ceil(total / target))
    if wanted > now and total <= (1 + TOLERANCE) * target * now:
        return now
    if wanted < now:  # the remaining ones must have room
        return min(now, max(1, math.ceil(total / ((1 - TOLERANCE) * target))))
    return wanted


def _message(
    observed: PoolObservation,
    auto: Autoscale,
    space: Capacity | None,
    figures: tuple[AutoscaleFigure, ...],
    now: int,
    largest: int,
) -> str:
    """Return the reason of the recommendation, and a bound that limits it."""
    unknown = [figure.name.value for figure in figures if figure.desired is None]
    parts = [f"not known yet: {', '.join(unknown)}"] if unknown else []
    if largest < now:
        parts += [_down(figure, auto, space) for figure in figures]
        parts += [f"autoscale.min is {auto.min}"] if now <= auto.min else []
    elif largest > now:
        parts += [_up(figure) for figure in figures if figure.desired is not None and figure.desired > now]
        parts += [f"autoscale.max is {auto.max}"] if now >= auto.max else []
    return "; ".join(parts)


def _up(figure: AutoscaleFigure) -> str:
    if figure.name is Measure.SPACE:
        return f"{figure.current} % of the space is used, highWatermark is {figure.target}"
    return f"{figure.current} {_UNITS[figure.name]}, the target is {figure.target}"


def _down(figure: AutoscaleFigure, auto: Autoscale, space: Capacity | None) -> str:
    if figure.name is Measure.SPACE:
        used = 0 if space is None else space.used_percent
        return (
            f"{used} % of the space is used; with one bookie less this would still be below "
            f"lowWatermark {auto.low_watermark}"
        )
    return f"{figure.current} {_UNITS[figure.name]}, the target is {figure.target}: {figure.desired} are enough"


def waited(since: str | None, window: str, now_s: float) -> bool:
    """Return whether a recommendation has pointed in one direction for its window."""
    return since is not None and now_s - seconds_of(since) >= duration_s(window)
