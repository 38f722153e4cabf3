"""Decides which bundles are split, and at which hash. Pure.

A bundle is split when it has been above one of its limits for some checks in a row, has at least two topics, and its
namespace may have more bundles. A bundle that only one topic makes hot cannot be helped by a split.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import groupby, pairwise

from quire_bookie.dataclass import dataclass
from quire_broker.balancing.plan.loads import BundleLoad, BundleName, namespace_of
from quire_broker.settings.balancing import RANGE_HALF, BalancingSettings


def _exceeds(load: BundleLoad, settings: BalancingSettings) -> bool:
    """Return whether the bundle exceeds a limit: the answer for nearly all of thousands of bundles is no."""
    return (
        load.topics > settings.bundle_topics_max
        or load.sessions > settings.bundle_sessions_max
        or load.messages_per_s > settings.bundle_messages_max
        or load.bytes_per_s > settings.bundle_bytes_max
    )


def limit_exceeded(load: BundleLoad, settings: BalancingSettings) -> str | None:
    """Return the first limit that the bundle exceeds, with the figures; None if it exceeds none."""
    if not _exceeds(load, settings):
        return None
    mebibyte = 1 << 20
    for what, value, limit in (
        ("topics", load.topics, settings.bundle_topics_max),
        ("producers and consumers", load.sessions, settings.bundle_sessions_max),
        ("messages/s", load.messages_per_s, settings.bundle_messages_max),
        ("MiB/s", load.bytes_per_s / mebibyte, settings.bundle_bytes_max / mebibyte),
    ):
        if value > limit:
            return f"{value:.0f} {what}, above the limit of {limit:.0f}"
    return None


@dataclass(frozen=True, slots=True)
class Split:
    """A bundle that is to become two, with the reason."""

    bundle: BundleName
    reason: str


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """The result of one check."""

    splits: tuple[Split, ...] = ()
    hits: Mapping[BundleName, int] = field(default_factory=dict)
    """Checks in a row in which a bundle was above a limit."""
    notes: tuple[str, ...] = ()


def plan_splits(
    loads: Iterable[BundleLoad],
    bundle_counts: Mapping[str, int],
    hits: Mapping[BundleName, int],
    settings: BalancingSettings,
) -> SplitPlan:
    """Return the splits of this check. `bundle_counts`: how many bundles each namespace has."""
    counts, now = dict(bundle_counts), dict[BundleName, int]()
    splits: list[Split] = []
    notes: list[str] = []
    hot = [(load, reason) for load in loads if (reason := limit_exceeded(load, settings)) is not None]
    for load, reason in sorted(hot, key=lambda each: -each[0].weight):
        namespace = namespace_of(load.name)
        if load.topics < 2:
            notes.append(f"{load.name} has {reason}, but only {load.topics} topics")
        elif counts.get(namespace, 1) >= settings.bundles_max:
            notes.append(f"{load.name} has {reason}, but {namespace} already has {counts[namespace]} bundles")
        else:
            now[load.name] = hits.get(load.name, 0) + 1
            if now[load.name] >= settings.split_hits and len(splits) < settings.splits_max:
                splits.append(Split(load.name, reason))
                counts[namespace] = counts.get(namespace, 1) + 1
    return SplitPlan(tuple(splits), now, tuple(notes))


def boundary(low: int, high: int, algorithm: str, hashes: Sequence[int] = ()) -> int | None:
    """Return the hash at which the second half begins; None if the range cannot be divided that way.

    `hashes`: those of the bundle's topics, for the division by topic count.
    """
    if high - low < 2:
        return None
    if algorithm == RANGE_HALF:
        return low + (high - low) // 2
    runs = [
        (value, len(list(run))) for value, run in groupby(sorted(value for value in hashes if low <= value <= high))
    ]
    if len(runs) < 2:
        return None
    total, before, best, found = sum(count for _, count in runs), 0, -1, None
    for (value, count), (following, _) in pairwise(runs):
        before += count
        smaller = min(before, total - before)
        middle = value + (following - value + 1) // 2
        if smaller > best and low < middle < high:
            best, found = smaller, middle
    return found
