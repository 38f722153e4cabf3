"""Tables of Markdown."""

from collections.abc import Iterable, Iterator, Sequence

GENERATED = "<!-- written by `make reference` from the code; do not edit -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; a bar or a line break in a cell does not end it."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '&#124;').replace(chr(10), ' ') for cell in row)} |"
