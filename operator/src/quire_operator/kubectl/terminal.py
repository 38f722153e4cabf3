"""Texts for a terminal. Names, statuses and logs come from others: a terminal must not act on what they hold. Pure."""

import re

_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but newline and tab, and those that change the direction of text."""


def for_terminal(text: str) -> str:
    r"""Text of several lines perhaps; what a terminal would act on is shown as `\u001b`, which JSON reads back."""
    return _ACTED_ON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def on_one_line(text: str) -> str:
    r"""The same for a part of a line: newlines are escaped, too."""
    return for_terminal(text).replace("\n", "\\n").replace("\t", "\\t")
