"""An error that a task of Spark raised keeps its class on the way to the driver, and so whether a retry helps."""

import pytest

from quire_jobs import errors
from quire_jobs.errors import JobOptionsError, QuireJobError, SourceUnavailableError, named_in, retry_helps

OF_A_TASK = """Job aborted due to stage failure: Task 3 in stage 0.0 failed 4 times: Traceback (most recent call last):
  File "source/cluster.py", line 114, in told
quire_bookie.errors.QuorumError: ledger 7: 2 of 3 bookies are away

The above exception was the direct cause of the following exception:

  File "source/reading.py", line 20, in read
quire_jobs.errors.{name}: quire source: ledger 7: 2 of 3 bookies are away

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    "name",
    [each.__name__ for each in vars(errors).values() if isinstance(each, type) and issubclass(each, QuireJobError)],
)
def test_what_a_task_raised_is_of_its_class_again(name: str) -> None:
    found = named_in(OF_A_TASK.format(name=name))
    assert type(found) is getattr(errors, name)
    assert str(found) == "quire source: ledger 7: 2 of 3 bookies are away"


def test_a_class_that_is_not_known_here_is_the_root() -> None:
    assert type(named_in(OF_A_TASK.format(name="NewerError"))) is QuireJobError


def test_the_last_error_counts_and_others_are_none_of_ours() -> None:
    found = named_in("quire_jobs.errors.NotFoundError: one\nquire_jobs.errors.SourceUnavailableError: two")
    assert type(found) is SourceUnavailableError and str(found) == "two"
    assert named_in("ValueError: quire_jobs.errors.NotFoundError: quoted") is None
    assert named_in("") is None


def test_a_retry_helps_where_somebody_was_away_or_nothing_is_known() -> None:
    assert retry_helps(SourceUnavailableError("away")) and retry_helps(QuireJobError("busy"))
    assert not retry_helps(JobOptionsError("wrong"))
