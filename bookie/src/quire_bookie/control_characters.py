"""Finds and escapes control characters in texts that clients choose. Pure.

These are C0 (newline, ESC and the others below space), DEL, C1, and Unicode's line and paragraph separators. A terminal
or a log viewer acts on them instead of showing them.
"""

import re

from quire_bookie.limits import ROLE_CHARACTERS_MAX

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters on which a terminal acts, except newline and tab. Those for text direction disguise a name as another."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def has_control_characters(text: str) -> bool:
    """Return whether a text contains a control character."""
    return _CONTROL.search(text) is not None


def is_role(text: str) -> bool:
    """Return whether a text may be a role: not empty, not too long, and without control characters."""
    return 0 < len(text) <= ROLE_CHARACTERS_MAX and not has_control_characters(text)


def escaped(text: str) -> str:
    r"""Return the text on one line: each control character as `\n`, `\x1b` or `\u2028`."""
    return _CONTROL.sub(_escape, text)


def for_terminal(text: str) -> str:
    r"""Escape text of one or several lines for a terminal: newline and tab stay, other control characters do not."""
    return ACTED_ON.sub(_escape, text)


def cell_for_terminal(text: str) -> str:
    r"""Escape a part of a line for a terminal: like `for_terminal`, but newline and tab are escaped, too."""
    return escaped(for_terminal(text))


def _escape(match: re.Match[str]) -> str:
    found = match[0]
    return _SHORT.get(found) or (f"\\x{ord(found):02x}" if ord(found) < 0x100 else f"\\u{ord(found):04x}")
