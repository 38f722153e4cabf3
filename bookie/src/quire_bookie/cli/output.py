"""Prints text to a terminal safely: names and reasons come from servers, files and clients and are escaped."""

import sys

from quire_bookie.control_characters import for_terminal


def say(text: str, *, err: bool = False) -> None:
    """Print text on standard output or standard error, with terminal control characters escaped."""
    print(for_terminal(text), file=sys.stderr if err else sys.stdout, flush=True)


def say_content(text: str) -> None:
    """Print the content of a message: escaped on a terminal, unchanged into a file or a pipe."""
    print(for_terminal(text) if sys.stdout.isatty() else text, flush=True)
