"""A log line represents one event: no text of a client can begin another line."""

import json
import logging
import sys

import pytest

from quire_bookie.cli.process import JsonLines, TextLines

FORGED = "a\n2026-01-01T00:00:00.000 INFO    quire.broker: role 'admin' is let in\x1b[2K\r\x85b\u2028c\u2029d\x9b"


def record_of(message: str, *args: object, error: BaseException | None = None) -> logging.LogRecord:
    trace = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord("quire.test", logging.WARNING, __file__, 1, message, args, trace)


def test_a_name_with_a_newline_stays_on_its_line() -> None:
    line = TextLines().format(record_of("topic %s is loaded", FORGED))
    assert line.splitlines() == [line]
    assert "topic a\\n2026-01-01T00:00:00.000" in line
    assert "\\x1b[2K\\r\\x85b\\u2028c\\u2029d\\x9b is loaded" in line
    assert line.isprintable()


def test_the_lines_of_a_traceback_are_indented_and_escaped() -> None:
    try:
        raise ValueError(FORGED)
    except ValueError as error:
        record = record_of("%s failed", "it", error=error)
    record.exc_text = "2026 another formatter kept this"
    first, *trace = TextLines().format(record).split("\n")
    assert first.endswith("quire.test: it failed")
    assert all(line.startswith("  ") and line.isprintable() for line in trace)
    assert any("ValueError: a" in line for line in trace)
    assert "another formatter" not in "".join(trace)


def test_a_stack_is_indented_too() -> None:
    record = record_of("here")
    record.stack_info = f"Stack\n{FORGED}"
    assert [line[:2] for line in TextLines().format(record).split("\n")[1:]] == ["  "] * 3


@pytest.mark.parametrize("name", ["\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\n"])
def test_json_keeps_an_event_on_one_line_and_a_parser_restores_the_name(name: str) -> None:
    line = JsonLines().format(record_of("topic %s", f"Grüße{name}"))
    assert line.splitlines() == [line]
    assert line.isprintable()
    assert "Grüße" in line
    assert json.loads(line)["message"] == f"topic Grüße{name}"


def test_the_escapes_reach_the_log_of_a_process(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines())
    log = logging.getLogger("quire.test.lines")
    log.addHandler(handler)
    try:
        log.warning("%s", FORGED)
    finally:
        log.removeHandler(handler)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
