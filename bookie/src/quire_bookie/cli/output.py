"""Prints texts for people. Names and reasons come from servers, files and clients: a terminal must not act on them."""

import sys

from quire_bookie.control_characters import for_terminal


def say(text: str, *, err: bool = False) -> None:
    """Print text on standard output, or on standard error, with what a terminal would act on escaped."""
    print(for_terminal(text), file=sys.stderr if err else sys.stdout, flush=True)


def say_content(text: str) -> None:
    """Print the content of a message: as `say` on a terminal, and unchanged into a file or a pipe."""
    print(for_terminal(text) if sys.stdout.isatty() else text, flush=True)
