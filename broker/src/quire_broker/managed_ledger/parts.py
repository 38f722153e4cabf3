"""Builds the appender and the reader of a managed ledger from the dependencies that its parts share."""

from quire_broker.managed_ledger.appending.appender import Appender, AppendObserver
from quire_broker.managed_ledger.appending.traced_appends import TracedAppends
from quire_broker.managed_ledger.context import ManagedLedgerContext
from quire_broker.managed_ledger.list_store import ListStore
from quire_broker.managed_ledger.nodes.ledger_list import LedgerList
from quire_broker.managed_ledger.reading.active_readers import ActiveReaders
from quire_broker.managed_ledger.reading.entry_cache import TopicCache
from quire_broker.managed_ledger.reading.reader import EntryReader
from quire_broker.managed_ledger.reading.slow_reads import SlowReads
from quire_broker.names import topic_of_ledger


def open_reader(
    context: ManagedLedgerContext, ledgers: LedgerList, cache: TopicCache, readers: ActiveReaders
) -> EntryReader:
    """Return the reader of its entries."""
    return EntryReader(
        context.client,
        ledgers,
        cache,
        context.background,
        context.settings,
        context.tier,
        context.memory,
        SlowReads(context.slow, context.name, context.traces),
        readers,
        context.turns,
    )


def open_appender(context: ManagedLedgerContext, lists: ListStore, observer: AppendObserver) -> Appender:
    """Return its write side. `observer` receives the events."""
    return Appender(
        lists,
        context.maker,
        context.availability,
        observer,
        context.background,
        context.clock,
        context.settings,
        context.backoff,
        context.slow,
        None if context.traces is None else TracedAppends(context.traces, str(topic_of_ledger(context.name))),
    )
