"""The error tree of the broker, and the table that maps an error to the protocol's ServerError code.

It extends the tree of `quire_bookie.errors`; code that catches QuireError also catches these. Owns no messages of the
protocol: it must not import anything of the broker.

QuireError
|- BrokerError                   0 UnknownError, unless a class below has another code
   |- SubscriptionInUseError     1  unsubscribe while others are attached
   |- PersistenceError           2  the entry is not (known to be) stored; the client reconnects and sends again
   |- ConsumerBusyError          5  another consumer holds the subscription; retry when it left
   |- ServiceNotReadyError       6  the topic is loading, closing, fenced or another broker's; the client looks up again
   |- ProducerHoldError          7  backlog quota, producers wait
   |- ProducerQuotaError         8  backlog quota, producers fail
   |- AuthenticationError        3  the client did not authenticate; it is disconnected
   |- AuthorizationError         4  the client may not do this; no retry until it is granted
   |- ChecksumFailedError        9  the payload does not match its checksum
   |- UnsupportedVersionError   10
   |- TopicNotFoundError        11  no retry until it is created
   |- SubscriptionNotFoundError 12
   |- ConsumerNotFoundError     13
   |- TooManyOperationsError    14  retry with back-off
   |- TopicTerminatedError      15  permanent
   |- ProducerBusyError         16  the name is taken, or an exclusive producer holds the topic
   |- InvalidTopicNameError     17
   |- SchemaError               18
   |- ConsumerAssignError       19  key ranges overlap
   |- CoordinatorNotFoundError  20
   |- NotAllowedError           22
   |- ProducerFencedError       25  an exclusive producer took over; this one is finished
   |- ConflictError              0  of the admin API: the thing exists, or is in use
   |- NotFoundError              0  of the admin API: a tenant, namespace or cluster that does not exist
   |- CompactionError            0  the topic cannot be compacted now; nothing was changed; the text has the remedy
   |- OffloadError               0  this ledger or these settings cannot be offloaded; the text has the remedy
      |- SegmentMissingError     0  an object of the segment is missing; no retry; the bookies may have the ledger
      |- SegmentDamagedError     0  an object does not match its ledger or index; never data; no retry
"""

from enum import IntEnum

from quire_bookie.errors import (
    LedgerError,
    LedgerFencedError,
    MetadataError,
    QuireError,
    StorageError,
    TooManyRequestsError,
)


class ServerError(IntEnum):
    """Codes of the protocol's enum of the same name."""

    UNKNOWN = 0
    METADATA = 1
    PERSISTENCE = 2
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEPTION = 8
    CHECKSUM = 9
    UNSUPPORTED_VERSION = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class BrokerError(QuireError):
    """Root of the broker's refusals and failures. The message is sent to the client unchanged."""


class SubscriptionInUseError(BrokerError):
    """Other consumers are attached to the subscription that should be deleted."""


class PersistenceError(BrokerError):
    """An entry is not known to be stored. It may be stored: deduplication makes the retry safe."""


class AuthenticationError(BrokerError):
    """The client did not authenticate. The message contains nothing that it sent."""


class AuthorizationError(BrokerError):
    """The client's role may not do this."""


class ConsumerBusyError(BrokerError):
    """The subscription is held by another consumer, or used with another type."""


class ServiceNotReadyError(BrokerError):
    """Not now, or not here: the client looks the topic up again and retries."""


class ProducerHoldError(BrokerError):
    """The backlog quota is reached and producers should wait."""


class ProducerQuotaError(BrokerError):
    """The backlog quota is reached and producers should fail."""


class ChecksumFailedError(BrokerError):
    """The payload of a SEND does not match its checksum."""


class UnsupportedVersionError(BrokerError):
    """The client's protocol version does not support its request."""


class TopicNotFoundError(BrokerError):
    """The topic (or its namespace) does not exist and may not be created."""


class SubscriptionNotFoundError(BrokerError):
    """The subscription does not exist and may not be created."""


class ConsumerNotFoundError(BrokerError):
    """No consumer of that id on this connection."""


class TooManyOperationsError(BrokerError):
    """A limit of concurrent operations is reached. Retry with back-off."""


class TopicTerminatedError(BrokerError):
    """The topic was terminated: nothing more can be published to it."""


class ProducerBusyError(BrokerError):
    """A live producer has that name, or holds the topic exclusively."""


class InvalidTopicNameError(BrokerError):
    """The text is not a topic name."""


class SchemaError(BrokerError):
    """The schema is invalid or incompatible."""


class ConsumerAssignError(BrokerError):
    """Another consumer has the requested key ranges."""


class CoordinatorNotFoundError(BrokerError):
    """There is no such transaction coordinator here."""


class NotAllowedError(BrokerError):
    """The operation is not allowed or not supported."""


class ProducerFencedError(BrokerError):
    """An exclusive producer took over the topic."""


class ConflictError(BrokerError):
    """Of the admin API: the object already exists, or is in use."""


class NotFoundError(BrokerError):
    """Of the admin API: a cluster, tenant, namespace or ledger that does not exist."""


class CompactionError(BrokerError):
    """A topic was not compacted. A retry helps only after the remedy in the text."""


class OffloadError(BrokerError):
    """A ledger is not offloaded. A retry helps only after the remedy in the text."""


class SegmentMissingError(OffloadError):
    """An object of an offloaded ledger is missing: it was deleted, or never created."""


class SegmentDamagedError(OffloadError):
    """An object of an offloaded ledger does not hold the expected content."""


SERVER_ERRORS: dict[type[BaseException], ServerError] = {
    BrokerError: ServerError.UNKNOWN,
    SubscriptionInUseError: ServerError.METADATA,
    PersistenceError: ServerError.PERSISTENCE,
    AuthenticationError: ServerError.AUTHENTICATION,
    AuthorizationError: ServerError.AUTHORIZATION,
    ConsumerBusyError: ServerError.CONSUMER_BUSY,
    ServiceNotReadyError: ServerError.SERVICE_NOT_READY,
    ProducerHoldError: ServerError.PRODUCER_BLOCKED_QUOTA_ERROR,
    ProducerQuotaError: ServerError.PRODUCER_BLOCKED_QUOTA_EXCEPTION,
    ChecksumFailedError: ServerError.CHECKSUM,
    UnsupportedVersionError: ServerError.UNSUPPORTED_VERSION,
    TopicNotFoundError: ServerError.TOPIC_NOT_FOUND,
    SubscriptionNotFoundError: ServerError.SUBSCRIPTION_NOT_FOUND,
    ConsumerNotFoundError: ServerError.CONSUMER_NOT_FOUND,
    TooManyOperationsError: ServerError.TOO_MANY_REQUESTS,
    TopicTerminatedError: ServerError.TOPIC_TERMINATED,
    ProducerBusyError: ServerError.PRODUCER_BUSY,
    InvalidTopicNameError: ServerError.INVALID_TOPIC_NAME,
    SchemaError: ServerError.INCOMPATIBLE_SCHEMA,
    ConsumerAssignError: ServerError.CONSUMER_ASSIGN,
    CoordinatorNotFoundError: ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
    NotAllowedError: ServerError.NOT_ALLOWED,
    ProducerFencedError: ServerError.PRODUCER_FENCED,
    # Errors of ledgers that reach a client.
    LedgerError: ServerError.PERSISTENCE,
    LedgerFencedError: ServerError.SERVICE_NOT_READY,
    TooManyRequestsError: ServerError.PERSISTENCE,
    StorageError: ServerError.PERSISTENCE,
    MetadataError: ServerError.METADATA,
    QuireError: ServerError.UNKNOWN,
}


def server_error_of(error: BaseException) -> ServerError:
    """Return the code of the nearest class of `error` in the table; UNKNOWN for foreign errors."""
    for kind in type(error).__mro__:
        code = SERVER_ERRORS.get(kind)
        if code is not None:
            return code
    return ServerError.UNKNOWN
