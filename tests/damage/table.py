"""The allowed outcomes by file and damage. docs/durability.md shows this table, and a test compares both."""

from tests.damage.outcome import Damage, Outcome

R, N, E, L = Outcome.REFUSED, Outcome.NO_LOSS, Outcome.EIO, Outcome.LIMBO
Allowed = tuple[frozenset[Outcome], ...]


def _row(removed: str, older: str, swapped: str, truncated: str, flipped: str) -> Allowed:
    letters = {"R": R, "N": N, "E": E, "L": L}
    return tuple(frozenset(letters[each] for each in cell) for cell in (removed, older, swapped, truncated, flipped))


COLUMNS = (Damage.REMOVED, Damage.OLDER, Damage.SWAPPED, Damage.TRUNCATED, Damage.FLIPPED)
TABLE: dict[str, Allowed] = {
    # An empty cell: the content never changes, or is the same for every bookie.
    "journal file, newest": _row("R", "R", "R", "R", "NR"),
    "journal file, older": _row("R", "NR", "R", "R", "NR"),
    "journal file, prepared": _row("R", "N", "R", "N", "N"),
    "journal file, spare": _row("N", "NR", "NR", "NR", "N"),
    "last-mark": _row("R", "NR", "R", "R", "R"),
    "journal.witness": _row("R", "N", "R", "R", "N"),
    "VERSION": _row("R", "", "R", "NR", "NR"),  # the digit of the layout may turn into that of another layout
    "PLACE": _row("R", "", "R", "R", "R"),
    "STATE": _row("N", "NR", "", "R", "R"),
    "RUN": _row("N", "N", "", "R", "R"),
    "entry log, open": _row("E", "E", "E", "NE", "NE"),
    "entry log, sealed": _row("E", "NE", "E", "NE", "NE"),
    "index.proof": _row("R", "N", "R", "R", "R"),
    "limbo.record": _row("N", "N", "N", "N", "N"),
    "index, CURRENT": _row("R", "R", "R", "R", "R"),
    "index, MANIFEST": _row("R", "NR", "R", "NR", "R"),
    "index, table (SST)": _row("R", "R", "R", "R", "NRE"),
    "index, write-ahead log": _row("NR", "NR", "NR", "NR", "R"),
    "index, OPTIONS": _row("N", "N", "N", "N", "N"),
    "index, IDENTITY": _row("N", "N", "N", "N", "N"),
    "index, rocksdict-config.json": _row("N", "", "", "NR", "NR"),
    "index, LOG": _row("N", "N", "N", "N", "N"),
    "index, LOCK": _row("N", "", "", "", ""),
    "gc.state": _row("N", "N", "", "N", "N"),
    "quarantine.txt": _row("N", "N", "", "N", "N"),
    "scrub.position": _row("N", "N", "N", "N", "N"),
    "read-only.operator": _row("N", "", "N", "N", "N"),
}


def allowed(kind: str, damage: Damage) -> frozenset[Outcome]:
    """Return the allowed outcomes; empty if the damage cannot happen to that kind of file."""
    return TABLE[kind][COLUMNS.index(damage)]


def markdown() -> str:
    """Return the table as docs/durability.md shows it."""
    lines = ["| file | " + " | ".join(column.value for column in COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for kind, cells in TABLE.items():
        texts = (" or ".join(outcome.value for outcome in Outcome if outcome in cell) or "-" for cell in cells)
        lines.append(f"| {kind} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"
