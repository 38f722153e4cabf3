"""Decides which consumers may join a subscription, and with which dispatcher. The subscription performs it."""

from collections.abc import Sequence
from typing import NamedTuple

from quire_bookie.env.clock import WallClock
from quire_broker.dispatch.consumer import Consumer
from quire_broker.dispatch.delayed_index import DelayingCursor
from quire_broker.dispatch.delivery import ConsumerSpec, EntryCursor, EntryLedger, KeyShared
from quire_broker.dispatch.dispatcher import Dispatcher
from quire_broker.dispatch.key_shared import KeySharedDispatcher
from quire_broker.dispatch.shared import SharedDispatcher
from quire_broker.dispatch.single_active import SingleActiveDispatcher
from quire_broker.dispatch.slots import StickyRanges
from quire_broker.errors import BrokerError, ConsumerAssignError, ConsumerBusyError, NotAllowedError
from quire_broker.names import TopicName
from quire_broker.settings.dispatch import DispatchSettings
from quire_broker.wire.kinds import TYPE_NAMES, KeySharedMode, SubscriptionType

_SINGLE = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class Rival(NamedTuple):
    """A conflicting consumer, and the error if its client is alive."""

    consumer: Consumer
    error: BrokerError


def key_shared_of(spec: ConsumerSpec) -> KeyShared:
    """Return the Key_Shared options of a consumer, or the default."""
    return spec.key_shared if spec.key_shared is not None else KeyShared()


def refusal(
    spec: ConsumerSpec, current: SubscriptionType, consumers: Sequence[Consumer], mode: KeySharedMode | None
) -> BrokerError | None:
    """Return why a consumer cannot join `consumers`, of which `mode` is Key_Shared's, regardless of live rivals.

    None if it can. ConsumerAssignError for bad ranges.
    """
    if spec.read_compacted and spec.subscription_type not in _SINGLE:
        return NotAllowedError("readCompacted only allowed on failover or exclusive subscriptions")
    if not consumers:
        return None
    if spec.subscription_type is not current:
        return ConsumerBusyError(
            f"Subscription is of different type. Active subscription type of '{TYPE_NAMES[current]}' is different "
            f"than the connecting consumer's type '{TYPE_NAMES[spec.subscription_type]}'."
        )
    if mode is not None:
        wanted = key_shared_of(spec)
        if wanted.mode is not mode:
            return ConsumerBusyError(
                f"Subscription is of different type. Active subscription key_shared mode of '{mode.name}' "
                f"is different than the connecting consumer's key_shared mode '{wanted.mode.name}'."
            )
    return None


def conflicting(
    spec: ConsumerSpec, consumers: Sequence[Consumer], sticky: StickyRanges[Consumer] | None
) -> Rival | None:
    """Return a consumer that holds what this one requests: the whole subscription, or some of the key ranges."""
    if spec.subscription_type is SubscriptionType.EXCLUSIVE and consumers:
        return Rival(consumers[0], ConsumerBusyError("Exclusive consumer is already connected"))
    if spec.subscription_type is not SubscriptionType.KEY_SHARED:
        return None
    wanted = key_shared_of(spec)
    if wanted.mode is not KeySharedMode.STICKY:
        return None
    held = conflict_of(wanted, sticky if consumers else None)
    if held is None:
        return None
    return Rival(held, ConsumerAssignError(f"Range conflict with consumer {held!r}"))


def conflict_of(wanted: KeyShared, sticky: StickyRanges[Consumer] | None) -> Consumer | None:
    """Return the holder of a part of the wanted ranges. ConsumerAssignError for impossible ranges."""
    return (sticky if sticky is not None else StickyRanges[Consumer]()).conflict(wanted.ranges)


def dispatcher_for(
    spec: ConsumerSpec,
    kept: Dispatcher | None,
    cursor: DelayingCursor,
    compacted: EntryCursor,
    ledger: EntryLedger,
    settings: DispatchSettings,
    clock: WallClock,
    topic: TopicName,
) -> Dispatcher:
    """Return the dispatcher for a first consumer: `kept` if it fits (it has redelivery counts), else a new one.

    Consumers with readCompacted read from `compacted` instead of `cursor`.
    """
    wanted = spec.subscription_type
    if wanted is SubscriptionType.KEY_SHARED:
        asked = key_shared_of(spec)
        if (
            isinstance(kept, KeySharedDispatcher)
            and kept.mode is asked.mode
            and kept.allow_out_of_order == asked.allow_out_of_order
        ):
            return kept
        return KeySharedDispatcher(cursor, ledger, settings, clock, asked)
    if wanted is SubscriptionType.SHARED:
        if type(kept) is SharedDispatcher:
            return kept
        return SharedDispatcher(cursor, ledger, settings, clock)
    failover = wanted is SubscriptionType.FAILOVER
    if isinstance(kept, SingleActiveDispatcher) and kept.failover is failover:
        return kept
    return SingleActiveDispatcher(
        cursor, compacted, ledger, settings, clock, topic=str(topic), partition_index=topic.partition, failover=failover
    )
