"""The statuses of responses in one table: name, code of V2, code of V3, and the client's error.

Which status a response has is decided by the server.
Codes: BookKeeper's protocol. An unknown code of a peer counts as IO_ERROR, as in the stock client.
"""

from enum import Enum

from quire_bookie.errors import (
    BookieIoError,
    BookieProtocolError,
    BookieReadOnlyError,
    LedgerError,
    LedgerFencedError,
    NoSuchEntryError,
    NoSuchLedgerError,
    TooManyRequestsError,
    UnauthorizedError,
    UnknownLedgerStateError,
)


class Status(Enum):
    """The outcome of one request."""

    OK = "EOK"
    NO_LEDGER = "ENOLEDGER"
    NO_ENTRY = "ENOENTRY"
    BAD_REQUEST = "EBADREQ"
    IO_ERROR = "EIO"
    UNAUTHORIZED = "EUA"
    BAD_VERSION = "EBADVERSION"
    FENCED = "EFENCED"
    READ_ONLY = "EREADONLY"
    TOO_MANY_REQUESTS = "ETOOMANYREQUESTS"
    UNKNOWN_LEDGER_STATE = "EUNKNOWNLEDGERSTATE"


_TABLE: tuple[tuple[Status, int, int, type[LedgerError]], ...] = (
    (Status.OK, 0, 0, BookieProtocolError),
    (Status.NO_LEDGER, 1, 402, NoSuchLedgerError),
    (Status.NO_ENTRY, 2, 403, NoSuchEntryError),
    (Status.BAD_REQUEST, 100, 404, BookieProtocolError),
    (Status.IO_ERROR, 101, 501, BookieIoError),
    (Status.UNAUTHORIZED, 102, 502, UnauthorizedError),
    (Status.BAD_VERSION, 103, 503, BookieProtocolError),
    (Status.FENCED, 104, 504, LedgerFencedError),
    (Status.READ_ONLY, 105, 505, BookieReadOnlyError),
    (Status.TOO_MANY_REQUESTS, 106, 506, TooManyRequestsError),
    (Status.UNKNOWN_LEDGER_STATE, 107, 507, UnknownLedgerStateError),
)

V2_CODES: dict[Status, int] = {status: v2 for status, v2, _, _ in _TABLE}
V2_CODES[Status.UNKNOWN_LEDGER_STATE] = V2_CODES[Status.IO_ERROR]  # the stock V2 client throws on 107
V3_CODES = {status: v3 for status, _, v3, _ in _TABLE}
_OF_V2 = {v2: status for status, v2, _, _ in _TABLE}
_OF_V3 = {v3: status for status, _, v3, _ in _TABLE}
_ERRORS = {status: error for status, _, _, error in _TABLE}


def status_of_v2(code: int) -> Status:
    """Return the status of a V2 error code; IO_ERROR for an unknown code."""
    return _OF_V2.get(code, Status.IO_ERROR)


def status_of_v3(code: int) -> Status:
    """Return the status of a V3 code; IO_ERROR for an unknown code."""
    return _OF_V3.get(code, Status.IO_ERROR)


def error_of(status: Status, text: str) -> LedgerError:
    """Return the client's error for a status other than OK; `text` names the request and its bookie."""
    return _ERRORS[status](f"{text}: {status.value}")


def status_of(error: BaseException) -> Status:
    """Return the status with which a server answers an error; IO_ERROR for everything except ledger errors."""
    for status, _, _, kind in _TABLE[1:]:
        if isinstance(error, kind):
            return status
    return Status.IO_ERROR
