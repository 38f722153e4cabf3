import pytest

from quire_jobs.main.spark_session import spark_reason

OURS = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 0.0 failed 1 times
  File "source/reading.py", line 20, in read
quire_jobs.errors.DataLossError: ledger 7 is gone

	at org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OURS, "ledger 7 is gone"),
        ("quire_bookie.client.x.errors.QuorumError: one\nquire_bookie.errors.QuorumError: two", "two"),
        ("\n  [JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.\nmore", None),
        ("", "no reason given"),
    ],
)
def test_the_line_that_matters_is_found(text: str, reason: str | None) -> None:
    expected = reason or "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
    assert spark_reason(text) == expected
