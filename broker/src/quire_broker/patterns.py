"""Matches regular expressions of clients and administrators by RE2, whose time is bounded by pattern and text.

Engines that try one way after the other, as those of Python and Java, run for ever on a few characters. RE2 refuses
what has no such bound: look-around and back references.
"""

from functools import lru_cache

import re2

_CACHED_MAX = 1024


class Pattern:
    """A compiled regular expression. ValueError with the reason, also for one of more than `characters_max`."""

    def __init__(self, text: str, characters_max: int) -> None:
        if len(text) > characters_max:
            raise ValueError(f"{len(text)} characters; the limit is {characters_max}")
        if "&&" in text:
            raise ValueError("'&&' is not supported: RE2 has no operations on classes")
        options = re2.Options()
        options.log_errors = False
        try:
            self._compiled = re2.compile(text, options)
        except re2.error as error:
            (reason,) = error.args
            raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from error

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        return self._compiled.fullmatch(text) is not None


@lru_cache(maxsize=_CACHED_MAX)
def pattern_of(text: str, characters_max: int) -> Pattern:
    """Return the pattern of a text; the same object for the same text. ValueError."""
    return Pattern(text, characters_max)
