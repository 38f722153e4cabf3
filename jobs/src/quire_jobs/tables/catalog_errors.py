"""What errors of Iceberg catalogs and of their files mean: away for now, or wrong. Waits for what is away; no longer.

    away    SourceUnavailableError   no connection, no answer, 419, 429, 5xx, a database that is locked or restarts,
                                     a change of somebody else that came first
    wrong   JobOptionsError          address, credentials, names, a driver that is not installed

A catalog that is away is asked again after each of RETRY_DELAYS_S; then whoever runs the job may try again.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pyiceberg.exceptions
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    GenericDynamoDbError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    WaitingForLockException,
)
from requests.exceptions import RequestException, SSLError
from sqlalchemy import exc as sql

from quire_jobs.errors import JobOptionsError, SourceUnavailableError

RETRY_DELAYS_S = (0.5, 2.0, 8.0)
_AWAY: tuple[type[Exception], ...] = (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    GenericDynamoDbError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    WaitingForLockException,
    sql.DisconnectionError,
    sql.InterfaceError,
    sql.InternalError,
    sql.OperationalError,
    sql.TimeoutError,
    OSError,
)
_KNOWN: tuple[type[Exception], ...] = (
    *(each for each in vars(pyiceberg.exceptions).values() if isinstance(each, type) and issubclass(each, Exception)),
    sql.SQLAlchemyError,
    ImportError,
    NotImplementedError,
    OSError,
    ValueError,
)
T = TypeVar("T")


def is_away(error: Exception) -> bool:
    """Whether the same may go well a little later."""
    if isinstance(error, PermissionError | SSLError):
        return False
    if isinstance(error, RequestException) and isinstance(error, ValueError):
        return False  # an address that is none, an answer that is no catalog's: errors of requests are OSErrors too
    if isinstance(error, sql.DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, _AWAY)


@contextmanager
def told(table: str) -> Iterator[None]:
    """Errors of catalogs and file systems as those that a job shows its user; one line, without credentials."""
    try:
        yield
    except _KNOWN as error:
        line = str(error).strip().partition("\n")[0][:300]
        text = f"table {table}: {line or type(error).__name__}"
        raise (SourceUnavailableError if is_away(error) else JobOptionsError)(text) from error


def patiently(table: str, ask: Callable[[], T]) -> T:
    """What `ask` answers, asked again while the catalog is away. For what may be done twice. Errors as `told`."""
    for delay_s in RETRY_DELAYS_S:
        try:
            with told(table):
                return ask()
        except SourceUnavailableError:
            time.sleep(delay_s)
    with told(table):
        return ask()
