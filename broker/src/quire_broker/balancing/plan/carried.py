"""Keeps the load of a bundle that has just got another owner, until that one has measured it. Pure.

A topic has no rates before its second sample, so the first reports of a new owner show a bundle without traffic. Such a
bundle is reported as *new*; until it is not, the load counts that it had in the last report of any broker that had
measured it. A new bundle without such a report stays new, and is not moved.
"""

from collections.abc import Mapping
from dataclasses import replace

from quire_bookie.dataclass import dataclass
from quire_broker.balancing.plan.loads import BrokerLoad, BundleLoad, BundleName

FORGET_S = 3600.0
"""After this time a load is too old to be kept: it is longer than any report is valid."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The load of a bundle in the last report of a broker that had measured it."""

    load: BundleLoad
    reported_s: float


Known = Mapping[BundleName, Measured]


def learned(known: Known, report: BrokerLoad) -> dict[BundleName, Measured]:
    """Return what a report changes."""
    at_s = report.reported_s
    return {
        bundle.name: Measured(bundle, at_s)
        for bundle in report.bundles
        if bundle.topics and not bundle.is_new and _is_later(at_s, known.get(bundle.name))
    }


def _is_later(at_s: float, before: Measured | None) -> bool:
    return before is None or before.reported_s <= at_s


def remembered(known: Known, now_s: float) -> dict[BundleName, Measured]:
    """Return the loads that are still needed."""
    return {name: each for name, each in known.items() if now_s - each.reported_s < FORGET_S}


def with_carried(report: BrokerLoad, known: Known) -> BrokerLoad:
    """Return a report in which new bundles have at least the load that they had before."""
    messages_per_s, bytes_per_s = report.messages_per_s, report.bytes_per_s
    bundles: list[BundleLoad] = []
    for bundle in report.bundles:
        before = known.get(bundle.name)
        if not bundle.is_new or before is None:
            bundles.append(bundle)
            continue
        more = replace(
            bundle,
            messages_per_s=max(bundle.messages_per_s, before.load.messages_per_s),
            bytes_per_s=max(bundle.bytes_per_s, before.load.bytes_per_s),
            is_new=False,
        )
        messages_per_s += more.messages_per_s - bundle.messages_per_s
        bytes_per_s += more.bytes_per_s - bundle.bytes_per_s
        bundles.append(more)
    return replace(report, bundles=tuple(bundles), messages_per_s=messages_per_s, bytes_per_s=bytes_per_s)
