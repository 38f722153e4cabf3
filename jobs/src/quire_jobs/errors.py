"""Everything that a job tells its user is wrong. Each class says whether trying again helps.

QuireJobError           the root; its text is for the person who started the job
  JobOptionsError       an option, or several that do not go together: no, mend the options
  NotFoundError         no such topic, managed ledger or ledger: no, unless it is made
  DataLossError         what was asked for is no longer there (trimmed, deleted, vanished): no; see `failOnDataLoss`
  SourceUnavailableError bookies, metadata store or broker did not answer: yes
  TableSchemaError      the topics' schemas make no table: no, read them apart or in another mode
  UndecodableError      a payload is none of its schema, and the job was told to fail then: no

What a task of Spark raises comes to the driver as text: `named_in` makes the error of it again.
"""

import re
from typing import Final

_NAMED: Final = re.compile(rf"^{re.escape(__name__)}\.(\w+): (.*)", re.MULTILINE)


class QuireJobError(Exception):
    """The root."""


class JobOptionsError(QuireJobError):
    """The options of a job or of a source are wrong. A retry does not help."""


class NotFoundError(QuireJobError):
    """A topic, managed ledger or ledger that was named does not exist. A retry does not help."""


class DataLossError(QuireJobError):
    """Entries that belong to what was asked for are gone. A retry does not help."""


class SourceUnavailableError(QuireJobError):
    """Somebody who is needed did not answer. A retry helps."""


class TableSchemaError(QuireJobError):
    """The schemas of what was asked for do not make one table. A retry does not help."""


class UndecodableError(QuireJobError):
    """A payload is not of its schema, and the job is to fail then. A retry does not help."""


def retry_helps(error: QuireJobError) -> bool:
    """Whether the same may go well a little later. The root alone does not say what is wrong, so it may."""
    return type(error) is QuireJobError or isinstance(error, SourceUnavailableError)


def named_in(text: str) -> QuireJobError | None:
    """The error of this module that a traceback ends in, as the class that it was; None: there is none.

    The last one counts: a traceback has the causes before what was made of them.
    """
    found = _NAMED.findall(text)
    if not found:
        return None
    name, told = found[-1]
    kinds = {each.__name__: each for each in QuireJobError.__subclasses__() if each.__module__ == __name__}
    return kinds.get(name, QuireJobError)(told)
