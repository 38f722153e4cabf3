"""Escapes text for a terminal. Names, statuses and logs are untrusted: they must not control the terminal. Pure."""

import re

_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except newline and tab, and those that change the direction of text."""


def for_terminal(text: str) -> str:
    r"""Escape characters that control a terminal as `\u001b`, which is valid JSON. The text may have several lines."""
    return _ACTED_ON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def on_one_line(text: str) -> str:
    r"""Escape like `for_terminal`, and newlines and tabs, too, for a part of a line."""
    return for_terminal(text).replace("\n", "\\n").replace("\t", "\\t")
