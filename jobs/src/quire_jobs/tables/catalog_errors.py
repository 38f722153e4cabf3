"""Classifies errors of Iceberg catalogs and their files as unavailable or wrong. Retries an unavailable catalog.

    unavailable  SourceUnavailableError   no connection, no response, 419, 429, 5xx, a locked or restarting database,
                                          a concurrent change that came first
    wrong        JobOptionsError          address, credentials, names, a driver that is not installed

The retries follow RETRY_DELAYS_S; after them the run fails with a retryable error.
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
_UNAVAILABLE: tuple[type[Exception], ...] = (
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


def is_unavailable(error: Exception) -> bool:
    """Return whether a retry may succeed later."""
    if isinstance(error, PermissionError | SSLError):
        return False
    if isinstance(error, RequestException) and isinstance(error, ValueError):
        return False  # an invalid address, or a response that is not a catalog's; errors of `requests` are OSErrors too
    if isinstance(error, sql.DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, _UNAVAILABLE)


@contextmanager
def as_table_errors(table: str) -> Iterator[None]:
    """Turn errors of catalogs and file systems into errors of jobs: one line, without credentials."""
    try:
        yield
    except _KNOWN as error:
        line = str(error).strip().partition("\n")[0][:300]
        text = f"table {table}: {line or type(error).__name__}"
        raise (SourceUnavailableError if is_unavailable(error) else JobOptionsError)(text) from error


def with_retries(table: str, ask: Callable[[], T]) -> T:
    """Return the result of `ask`, with retries while the catalog is unavailable. `ask` must be repeatable.

    Raises the errors that `as_table_errors` makes.
    """
    for delay_s in RETRY_DELAYS_S:
        try:
            with as_table_errors(table):
                return ask()
        except SourceUnavailableError:
            time.sleep(delay_s)
    with as_table_errors(table):
        return ask()
