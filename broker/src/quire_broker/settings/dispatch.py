"""Declares the settings of dispatch. Comments give Pulsar's names of those that are constants here."""

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import MIB
from quire_bookie.settings.declared import setting

READ_BATCH_ENTRIES = 100  # dispatcherMaxReadBatchSize
READ_BATCH_BYTES = 5 * MIB  # dispatcherMaxReadSizeBytes
ROUND_ROBIN_MESSAGES = 20  # dispatcherMaxRoundRobinBatchSize
FAILOVER_DELAY_S = 1.0  # activeConsumerFailoverDelayTimeMillis
LOOK_AHEAD_PER_CONSUMER = 2_000  # keySharedLookAheadMsgInReplayThresholdPerConsumer
LOOK_AHEAD_MAX = 20_000  # keySharedLookAheadMsgInReplayThresholdPerSubscription
CHUNKED_MESSAGES_MAX = 10_000  # messages whose chunks are being delivered; above it the oldest may be split
PERMITS_MAX = 2**31 - 1  # the largest number that a client can grant in one FLOW
KNOWN_KEYS_MAX = 4096  # keys with a cached hash, per Key_Shared subscription
KNOWN_KEY_BYTES_MAX = 64
READ_RETRY_FIRST_S = 0.1
READ_RETRY_MAX_S = 15.0  # dispatcherReadFailureBackoffMaxTimeInMs


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """How subscriptions read and deliver. A limit of 0 unacknowledged messages means no limit."""

    read_batch_entries: int = READ_BATCH_ENTRIES
    read_batch_bytes: int = READ_BATCH_BYTES
    round_robin_messages: int = ROUND_ROBIN_MESSAGES
    unacked_per_consumer_max: int = setting(
        50_000,
        "maxUnackedMessagesPerConsumer",
        "delivery pauses above it; 0: no limit",
        short="max_unacked_per_consumer",
        ge=0,
    )
    unacked_per_subscription_max: int = setting(
        200_000,
        "maxUnackedMessagesPerSubscription",
        "delivery pauses above it; 0: no limit",
        short="max_unacked_per_subscription",
        ge=0,
    )
    failover_delay_s: float = FAILOVER_DELAY_S
    delayed_entries_max: int = setting(
        20_000_000,
        "delayedMessagesMaxPerSubscription",
        "delayed entries that a subscription holds, most of them in ledgers; above it no new ones are read until some "
        "are due",
        short="delayed_messages_max",
        ge=1,
    )
    delayed_bucket_entries: int = setting(
        50_000,
        "delayedDeliveryMinIndexCountPerBucket",
        "delayed entries of a subscription, 20 bytes each, that are in memory before their times are saved in a ledger",
        short="delayed_bucket_entries",
        ge=1,
        le=500_000,
    )
    look_ahead_per_consumer: int = LOOK_AHEAD_PER_CONSUMER
    look_ahead_max: int = LOOK_AHEAD_MAX
    chunked_messages_max: int = CHUNKED_MESSAGES_MAX
    key_shared_consistent_hashing: bool = True
    delayed_delivery: bool = True
    """Whether messages wait for their delivery time; a policy of a namespace or a topic turns it off."""
    pause_on_acks: bool = setting(
        False,
        "dispatcherPauseOnAckStatePersistentEnabled",
        "Shared and Key_Shared subscriptions read nothing new while further acks could not be saved "
        "(managedLedgerMaxUnackedRangesToPersist)",
    )
    batch_index_acks: bool = setting(False, "acknowledgmentAtBatchIndexLevelEnabled", "remember acks inside batches")
    read_retry_first_s: float = READ_RETRY_FIRST_S
    read_retry_max_s: float = READ_RETRY_MAX_S
