"""Everything that a job tells its user is wrong. Each class says whether trying again helps.

QuireJobError           the root; its text is for the person who started the job
  JobOptionsError       an option, or several that do not go together: no, mend the options
  NotFoundError         no such topic, managed ledger or ledger: no, unless it is made
  DataLossError         what was asked for is no longer there (trimmed, deleted, vanished): no; see `failOnDataLoss`
  SourceUnavailableError bookies, metadata store or broker did not answer: yes
  TableSchemaError      the topics' schemas make no table: no, read them apart or in another mode
  UndecodableError      a payload is none of its schema, and the job was told to fail then: no
"""


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
