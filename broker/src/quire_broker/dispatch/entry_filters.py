"""Entry filters: which entries of a topic a subscription gets. What a filter drops counts as acknowledged.

A filter is a function of Python, `(FilteredEntry) -> bool`, that returns whether an entry is delivered. Those of a
broker are the built-in ones and the entry points of the group `quire.entry_filters` in its environment. Stock brokers
load classes of Java instead, which cannot run here.

It runs on the event loop. So it must neither wait nor block, and what it takes is paid by its subscription: see
`FilterCost`. A filter that raises an error drops nothing: the entry is delivered, and the error is counted and logged.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from importlib.metadata import entry_points
from typing import Final, TypeAlias

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import ConfigError
from quire_broker.errors import NotAllowedError
from quire_broker.limits import FILTER_PAUSE_MAX_S, FILTER_STEP_S, FILTERS_MAX
from quire_broker.wire.entry import EntrySummary
from quire_broker.wire.proto.pulsar_pb2 import MessageMetadata

GROUP: Final = "quire.entry_filters"
PREFIX: Final = "filter."
_SHARE: Final = 4.0
"""Seconds that a subscription pauses for each second that its filters took: they get a fifth of the time at most."""
log = logging.getLogger("quire.broker.dispatch")


@dataclass(frozen=True, slots=True)
class FilteredEntry:
    """What a filter sees of an entry: a single message, or a whole batch, whose messages have no properties here."""

    topic: str
    subscription: str
    subscription_properties: Mapping[str, str]
    metadata: MessageMetadata
    """Do not change it."""
    messages: int
    is_batch: bool

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the message."""
        return {each.key: each.value for each in self.metadata.properties}


EntryFilter: TypeAlias = Callable[[FilteredEntry], bool]


def by_properties(entry: FilteredEntry) -> bool:
    """Deliver entries whose properties have the values that the subscription asks for, and every batch.

    A subscription property `filter.NAME` lists the values of NAME that are delivered, separated by commas.
    """
    if entry.is_batch:
        return True
    wanted = {
        name[len(PREFIX) :]: text for name, text in entry.subscription_properties.items() if name.startswith(PREFIX)
    }
    if not wanted:
        return True
    found = entry.properties
    return all(found.get(name) in [each.strip() for each in text.split(",")] for name, text in wanted.items())


BUILT_IN: Final[Mapping[str, EntryFilter]] = {"properties": by_properties}
"""Maps the names of the built-in filters."""


def installed_filters() -> dict[str, EntryFilter]:
    """Return the filters of this environment by name, built-in ones first. ConfigError: one cannot be loaded."""
    found = dict(BUILT_IN)
    for point in entry_points(group=GROUP):
        if point.name in BUILT_IN:
            raise ConfigError(f"entry point {point.name!r} of {GROUP} has the name of a built-in filter: rename it")
        try:
            loaded = point.load()
        except Exception as error:  # any error of a foreign module
            raise ConfigError(f"entry filter {point.name!r} ({point.value}) cannot be loaded: {error!r}") from error
        if not callable(loaded):
            raise ConfigError(f"entry filter {point.name!r} ({point.value}) is not a function")
        found[point.name] = loaded
    return found


def filters_with(names: str) -> dict[str, EntryFilter]:
    """Return the entry filters of this environment. ConfigError: one of them, or of these names, cannot be used."""
    found = installed_filters()
    flaw = flaw_of_names(names, found) if names.strip() else None
    if flaw is not None:
        raise ConfigError(f"entryFilterNames: {flaw}")
    return found


def names_in(text: str) -> list[str]:
    """Return the names in a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def flaw_of_names(text: str, known: Iterable[str]) -> str | None:
    """Return why a list of filters cannot be in force; None: it can."""
    names = names_in(text)
    if not names:
        return "entryFilterNames can't be empty. To remove entry filters use the remove method."
    if len(names) > FILTERS_MAX:
        return f"{len(names)} entry filters; a topic has at most {FILTERS_MAX}"
    for name in names:
        if name not in known:
            return (
                f"Entry filter '{name[:200]}' not found: this broker has {', '.join(sorted(known))}. Filters are "
                f"functions of Python in the entry points {GROUP}; classes of Java cannot be loaded"
            )
    return None


def filters_of(names: str, known: Mapping[str, EntryFilter]) -> tuple[EntryFilter, ...]:
    """Return the filters with these names, separated by commas."""
    return tuple(known.get(name) or missing(name) for name in names_in(names))


def missing(name: str) -> EntryFilter:
    """Return a filter for a name that this broker does not have: nothing is delivered until it is installed."""

    def refuse(_: FilteredEntry) -> bool:
        raise FilterMissingError(
            f"entry filter {name!r} of the policies is not installed on this broker: install it or remove it from them"
        )

    return refuse


class FilterMissingError(NotAllowedError):
    """A filter in force is not installed here. The subscription tries again: its policy may change."""


@dataclass(slots=True)
class FilterStats:
    """Messages since the subscription was loaded."""

    processed: int = 0
    accepted: int = 0
    rejected: int = 0
    errors: int = 0


@dataclass(slots=True)
class FilterCost:
    """Bounds what the filters of one subscription take of the event loop.

    A step of delivery ends when its filters took `FILTER_STEP_S`, and the subscription pauses four times as long as
    they took. One call is not bounded: it is a part of the broker that its administrator has installed.
    """

    taken_s: float = 0.0

    @property
    def is_spent(self) -> bool:
        """Whether this step looks at no more entries."""
        return self.taken_s >= FILTER_STEP_S

    def take_pause_s(self) -> float:
        """Return how long the subscription waits before its next step, and begin to count again."""
        taken_s, self.taken_s = self.taken_s, 0.0
        return min(taken_s * _SHARE, FILTER_PAUSE_MAX_S) if taken_s >= FILTER_STEP_S / _SHARE else 0.0


@dataclass(slots=True)
class SubscriptionFilters:
    """The filters of one subscription, in order: an entry is delivered if all of them deliver it."""

    topic: str
    subscription: str
    properties: Callable[[], Mapping[str, str]]
    """Those of the subscription, as they are now."""
    filters: Sequence[EntryFilter] = ()
    stats: FilterStats = field(default_factory=FilterStats)
    cost: FilterCost = field(default_factory=FilterCost)

    def admits(self, summary: EntrySummary) -> bool:
        """Return whether an entry is delivered. FilterMissingError."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        messages = summary.num_messages
        entry = FilteredEntry(
            self.topic, self.subscription, self.properties(), summary.metadata, messages, summary.is_batch
        )
        try:
            admitted = all(each(entry) for each in self.filters)
        except FilterMissingError:
            raise
        except Exception:
            admitted = True
            self.stats.errors += 1
            if self.stats.errors & (self.stats.errors - 1) == 0:  # the 1st, 2nd, 4th, 8th ... of them
                log.exception(
                    "an entry filter of subscription %s of %s failed for the time %d: the entry is delivered",
                    self.subscription,
                    self.topic,
                    self.stats.errors,
                )
        self.stats.processed += messages
        if admitted:
            self.stats.accepted += messages
        else:
            self.stats.rejected += messages
        self.cost.taken_s += loop.time() - began_s
        return admitted
