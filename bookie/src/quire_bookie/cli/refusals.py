"""Errors of commands that a running process refused or did not answer, and the exit code of each.

    QuireError                any other failure                                    1
      ConfigError             wrong usage or setting                               2
      RefusedError            the process refused, for another reason              1
        MissingError          the object does not exist                            3
        DeniedError           the role may not do it, or has no valid token        4
        ConflictError         it exists already, or is in use                      5
        NoAnswerError         nothing answers at the address                       6

Other distributions derive their errors from these. A retry helps only with NoAnswerError.
"""

from quire_bookie.cli.commands import (
    EXIT_CONFLICT,
    EXIT_DENIED,
    EXIT_FAILED,
    EXIT_MISSING,
    EXIT_NO_ANSWER,
    EXIT_USAGE,
)
from quire_bookie.errors import ConfigError, QuireError


class RefusedError(QuireError):
    """The process refused the request, for the reason in the text. Retrying helps only after a change."""


class MissingError(RefusedError):
    """The object that the command names does not exist."""


class DeniedError(RefusedError):
    """The role of the client may not do this, or it presented no valid credentials."""


class ConflictError(RefusedError):
    """It exists already, or is in use."""


class NoAnswerError(RefusedError):
    """Nothing answers at the address. A retry helps once the process runs."""


_EXIT_CODES: tuple[tuple[type[QuireError], int], ...] = (
    (ConfigError, EXIT_USAGE),
    (MissingError, EXIT_MISSING),
    (DeniedError, EXIT_DENIED),
    (ConflictError, EXIT_CONFLICT),
    (NoAnswerError, EXIT_NO_ANSWER),
)
_BY_STATUS = {401: DeniedError, 403: DeniedError, 404: MissingError, 409: ConflictError, 412: ConflictError}


def exit_code_of(error: QuireError) -> int:
    """Return the exit code of a command that ended with this error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), EXIT_FAILED)


def refusal_of_status(status: int, reason: str) -> RefusedError:
    """Return the error for a status of HTTP."""
    return _BY_STATUS.get(status, RefusedError)(reason)


def refusal_of(error: RefusedError, subject: str) -> RefusedError:
    """Return the same kind of error with a text that begins with the subject."""
    return type(error)(f"{subject}: {error}")
