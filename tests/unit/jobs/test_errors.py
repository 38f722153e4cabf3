"""An error of a Spark task keeps its class, and so its retryability, on the way to the driver."""

import pytest

from quire_jobs import errors
from quire_jobs.errors import JobOptionsError, QuireJobError, SourceUnavailableError, error_in, retry_helps

OF_A_TASK = """Job aborted due to stage failure: Task 3 in stage 0.0 failed 4 times: Traceback (most recent call last):
  File "source/cluster.py", line 114, in as_job_errors
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
def test_an_error_of_a_task_gets_its_class_back(name: str) -> None:
    found = error_in(OF_A_TASK.format(name=name))
    assert type(found) is getattr(errors, name)
    assert str(found) == "quire source: ledger 7: 2 of 3 bookies are away"


def test_an_unknown_class_becomes_the_root() -> None:
    assert type(error_in(OF_A_TASK.format(name="NewerError"))) is QuireJobError


def test_the_last_error_counts_and_other_errors_are_ignored() -> None:
    found = error_in("quire_jobs.errors.NotFoundError: one\nquire_jobs.errors.SourceUnavailableError: two")
    assert type(found) is SourceUnavailableError and str(found) == "two"
    assert error_in("ValueError: quire_jobs.errors.NotFoundError: quoted") is None
    assert error_in("") is None


def test_a_retry_helps_after_unavailability_or_an_unclassified_error() -> None:
    assert retry_helps(SourceUnavailableError("unavailable")) and retry_helps(QuireJobError("busy"))
    assert not retry_helps(JobOptionsError("wrong"))
