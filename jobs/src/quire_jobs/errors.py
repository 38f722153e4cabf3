"""Errors that a job reports to its user. Each class says whether a retry helps.

QuireJobError           the root; its text is for the user who started the job
  JobOptionsError       an option is wrong, or several do not fit together: no, correct the options
  NotFoundError         no such topic, managed ledger or ledger: no, unless it is created
  DataLossError         requested entries no longer exist (trimmed, deleted, lost): no; see `failOnDataLoss`
  SourceUnavailableError bookies, metadata store or broker did not respond: yes
  TableSchemaError      the topics' schemas do not form one table: no, read them separately or in another mode
  UndecodableError      a payload does not match its schema, and the job is configured to fail then: no

An error that a Spark task raises reaches the driver as text: `error_in` turns it back into an error.
"""

import re
from typing import Final

_NAMED: Final = re.compile(rf"^{re.escape(__name__)}\.(\w+): (.*)", re.MULTILINE)


class QuireJobError(Exception):
    """The root of all errors of jobs."""


class JobOptionsError(QuireJobError):
    """The options of a job or of a source are wrong. A retry does not help."""


class NotFoundError(QuireJobError):
    """A topic, managed ledger or ledger of this name does not exist. A retry does not help."""


class DataLossError(QuireJobError):
    """Entries that the job should read no longer exist. A retry does not help."""


class SourceUnavailableError(QuireJobError):
    """A bookie, the metadata store or a broker did not respond. A retry helps."""


class TableSchemaError(QuireJobError):
    """The schemas of the requested topics do not form one table. A retry does not help."""


class UndecodableError(QuireJobError):
    """A payload does not match its schema, and the job is configured to fail then. A retry does not help."""


def retry_helps(error: QuireJobError) -> bool:
    """Return whether a later attempt may succeed. The root class alone gives no cause, so it counts as retryable."""
    return type(error) is QuireJobError or isinstance(error, SourceUnavailableError)


def error_in(text: str) -> QuireJobError | None:
    """Return the error of this module with which a traceback ends, in its original class; None without such an error.

    The last error counts: a traceback lists causes before the errors that were raised from them.
    """
    found = _NAMED.findall(text)
    if not found:
        return None
    name, message = found[-1]
    kinds = {each.__name__: each for each in QuireJobError.__subclasses__() if each.__module__ == __name__}
    return kinds.get(name, QuireJobError)(message)
