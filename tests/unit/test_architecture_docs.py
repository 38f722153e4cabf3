"""Every module that ARCHITECTURE.md and CONTRIBUTING.md name exists: such names go stale when a file moves."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMBERS = {
    f"quire_{member}": ROOT / member / "src" / f"quire_{member}" for member in ("bookie", "broker", "operator", "jobs")
}


def exists(distribution: str, name: str) -> bool:
    path = MEMBERS[distribution].joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def missing(text: str, *, siblings: bool) -> Iterator[str]:
    """Yield names in table rows that lead to no module. `siblings`: a short name replaces the last part before it."""
    for row in text.splitlines():
        distribution = before = ""
        for name in re.findall(r"`([\w.]+)`", row) if row.startswith("|") else []:
            first, _, rest = name.partition(".")
            if first in MEMBERS:
                distribution, before = first, rest
            elif name.startswith(".") and distribution:
                parent = before.rpartition(".")[0]
                before = f"{parent}.{rest}" if siblings and parent else rest
            else:
                continue
            if not exists(distribution, before):
                yield f"{distribution}.{before} in: {row[:80]}"


@pytest.mark.parametrize(("page", "siblings"), [("ARCHITECTURE.md", False), ("CONTRIBUTING.md", True)])
def test_each_named_module_exists(page: str, siblings: bool) -> None:
    assert not list(missing((ROOT / page).read_text(), siblings=siblings))


def test_a_name_of_a_module_that_moved_is_found() -> None:
    assert list(missing("| x | `quire_bookie.storage`, `.storage.gone` |", siblings=False))
    assert list(missing("| x | `quire_bookie.journal.writer`, `.gone` |", siblings=True))
    assert not list(missing("| x | `quire_bookie.journal.writer`, `.journals` |", siblings=True))
