"""The operator's log: one line per event. Text from the API server or a bookie cannot begin a new line."""

import logging
import re
import sys

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class TextLines(logging.Formatter):
    """Formats an event as one line, followed by an indented traceback. Control characters are escaped in both."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and those of the traceback."""
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
    if level == "info":
        logging.getLogger("kopf").setLevel(logging.WARNING)  # it reports each handler that succeeded


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
