"""Errors of the client.

RefusedError (quire_bookie.cli.refusals: each class has the exit code of the commands)
|- BrokerRefusedError         the broker answered with an error; `code` has the reason. A retry does not help
   |- DeniedByBrokerError     the role is not known, or may not do this
   |- NotThereError           an object that the request names does not exist
      |- NoSuchTopicError     the topic, although its namespace does
   |- NoBrokerError           no broker answers. A retry helps when one runs
   |- ConnectionLostError     the connection ended before the answer. Whether the request was done is not known
   |- UnconfirmedError        a message has no receipt in time: it may be stored, or not
   |- ClosedError             the producer, consumer or client was closed before
"""

from quire_bookie.cli.refusals import DeniedError, MissingError, NoAnswerError, RefusedError
from quire_broker.errors import ServerError

_CODES = frozenset(ServerError)
_DENIED = (ServerError.AUTHENTICATION, ServerError.AUTHORIZATION)


class BrokerRefusedError(RefusedError):
    """The broker answered with an error, or the connection broke; the message has the reason."""

    code = ServerError.UNKNOWN
    """The reason that the broker gave."""


class NoBrokerError(BrokerRefusedError, NoAnswerError):
    """No broker answers at the address."""


class DeniedByBrokerError(BrokerRefusedError, DeniedError):
    """The broker does not know the role, or the role may not do this."""


class NotThereError(BrokerRefusedError, MissingError):
    """The broker names an object that does not exist, such as the namespace of a topic."""


class NoSuchTopicError(NotThereError):
    """The topic does not exist, although its namespace does."""


class ConnectionLostError(BrokerRefusedError):
    """The connection ended. Whether the broker served the request is not known."""


class UnconfirmedError(BrokerRefusedError):
    """A message has no receipt within the time limit: it may be stored, or not."""


class ClosedError(BrokerRefusedError):
    """The producer, the consumer or the client was closed."""


def error_of(code: int, message: str, topic: str = "") -> BrokerRefusedError:
    """Return the error for a code of a broker. `topic`: the topic that the request named, if it named one."""
    known = ServerError(code) if code in _CODES else ServerError.UNKNOWN
    place = f"{topic}: " if topic else ""
    text = f"{place}{known.name}: {message}" if message else f"{place}{known.name}"
    if known == ServerError.TOPIC_NOT_FOUND:  # with a message that names the missing object, if it is not the topic
        found: BrokerRefusedError = (
            NotThereError(text) if message else NoSuchTopicError(f"topic {topic} does not exist")
        )
    else:
        found = (DeniedByBrokerError if known in _DENIED else BrokerRefusedError)(text)
    found.code = known
    return found
