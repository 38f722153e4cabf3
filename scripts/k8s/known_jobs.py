"""Write the table of the kinds of jobs and their parameters: `.venv/bin/python scripts/k8s/known_jobs.py`, then format.

The operator does not import the jobs, so it has their kinds as a table; a unit test says when this must be run again.
"""

from pathlib import Path

from quire_jobs.main.kinds import MODULES, is_list, load_kind

FILE = Path(__file__).resolve().parents[2] / "operator" / "src" / "quire_operator" / "generated" / "known_jobs.py"
HEAD = '''"""Kinds of jobs and their parameters. Written by scripts/k8s/known_jobs.py from the jobs' own models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobKind:
    """The parameters of one kind."""

    parameters: frozenset[str]
    required: frozenset[str]
    lists: frozenset[str]
    """Parameters that accept several values."""


KINDS = {
'''


def names(given: list[str]) -> str:
    """A frozenset of texts."""
    return "frozenset({" + ", ".join(f'"{name}"' for name in sorted(given)) + "})" if given else "frozenset()"


def text() -> str:
    """The whole file."""
    parts = []
    for name in sorted(MODULES):
        model = load_kind(name).parameters
        known = {field.alias or key: field for key, field in model.model_fields.items()}
        required = [key for key, field in known.items() if field.is_required()]
        lists = [key for key in known if is_list(model, key)]
        sets = ",\n        ".join(names(each) for each in ([*known], required, lists))
        parts.append(f'    "{name}": JobKind(\n        {sets},\n    ),\n')
    return HEAD + "".join(parts) + "}\n"


if __name__ == "__main__":
    FILE.write_text(text())
