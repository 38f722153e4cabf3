"""Each line of the operator's log is one event."""

import logging

from quire_operator.running.log_lines import TextLines

FORGED = "no\nquire.operator: all is well\x1b[2K\x85\u2028"


def test_text_with_a_newline_stays_on_one_line() -> None:
    line = TextLines().format(logging.LogRecord("quire", logging.INFO, "f", 1, "it says %s", (FORGED,), None))
    assert line.splitlines() == [line]
    assert line.endswith("quire: it says no\\u000aquire.operator: all is well\\u001b[2K\\u0085\\u2028")


def test_the_lines_of_a_traceback_are_indented() -> None:
    error = ValueError(FORGED)
    record = logging.LogRecord("quire", logging.INFO, "f", 1, "failed", (), (ValueError, error, None))
    first, *trace = TextLines().format(record).split("\n")
    assert first.endswith("quire: failed")
    assert trace and all(line.startswith("  ") and line.isprintable() for line in trace)
