"""Real text for tests: the lines of the Python standard library's sources, with file and line number."""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Line:
    """One line and where it stands. `number` counts from 1 in its file."""

    file: str
    number: int
    text: str


def source_lines(count: int | None = None) -> list[Line]:
    """The first `count` lines (None: all of them), by file name, in order. Empty lines are lines too."""
    return list(islice(_all_lines(), count))


def _all_lines() -> Iterator[Line]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.glob("*.py")) + sorted(root.glob("[a-z]*/*.py")):
        if "site-packages" in path.parts:
            continue
        name = str(path.relative_to(root))
        for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            yield Line(name, number, text)
