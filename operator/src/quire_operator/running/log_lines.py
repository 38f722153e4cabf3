"""The operator's log: one line an event. What the API server or a bookie answers begins no line of its own."""

import logging
import re
import sys

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class TextLines(logging.Formatter):
    """An event as one line, then the trace of an error, indented. Control characters are escaped in both."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line, and those of the trace."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record, self.datefmt)
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        lines = [f"  {_escaped(each)}" for each in trace.split("\n") if each]
        return "\n".join((_escaped(self.formatMessage(record)), *lines))


def set_up_log(level: str) -> None:
    """Write events of this level and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
