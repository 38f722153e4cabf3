"""Tests of the comparison of restored metadata and bookies, as a table of ledgers."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.backup.holdings import Held, Holdings
from quire_bookie.backup.review import ADOPTED, Kind, missing, review
from quire_bookie.errors import BookieUnavailableError
from quire_bookie.metadata.store import Versioned
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Segment
from quire_bookie.storage.entry_ranges import EntryRange, join_ranges

LEDGER = LedgerId(7)


class Bookies:
    """Answers with the ranges that each bookie holds of one ledger."""

    def __init__(self, held: dict[str, list[tuple[int, int]]], silent: Iterable[str] = ()) -> None:
        self._held = held
        self._silent = silent

    def holdings(self, silent: Iterable[str] = ()) -> Holdings:
        of = {
            BookieId(bookie): {LEDGER: Held(EntryId(runs[-1][1]) if runs else None, False, False)}
            for bookie, runs in self._held.items()
        }
        return Holdings(of, {BookieId(one): "away" for one in silent})

    async def ranges(self, bookie: BookieId, _: LedgerId) -> list[EntryRange]:
        if bookie in self._silent:
            raise BookieUnavailableError(f"{bookie} is away")
        return [(EntryId(first), EntryId(last)) for first, last in self._held[bookie]]


class Nodes:
    """Metadata of one ledger or none."""

    def __init__(self, metadata: LedgerMetadata | None) -> None:
        self._metadata = metadata

    async def scan(self) -> Any:
        if self._metadata is not None:
            yield [(LEDGER, Versioned(self._metadata, 0))]


def metadata(*segments: tuple[int, str], last: int | None = None) -> LedgerMetadata:
    """Create metadata with segments given as first entry and bookies, a letter each; closed when `last` is given."""
    found = tuple(Segment(EntryId(first), tuple(map(BookieId, names))) for first, names in segments)
    closed = {} if last is None else {"state": LedgerState.CLOSED, "last_entry": EntryId(last)}
    return LedgerMetadata(3, 3, 2, found, **closed)  # type: ignore[arg-type]


FULL = [(0, 9)]


@pytest.mark.parametrize(
    ("stored", "held", "kind"),
    [
        (None, {"a": FULL}, Kind.ORPHAN),
        (metadata((0, "abc"), last=9), {"a": FULL, "b": FULL, "c": FULL}, None),
        (metadata((0, "abc"), last=9), {}, Kind.GONE),
        (metadata((0, "abc"), last=-1), {}, None),
        (metadata((0, "abc")), {}, None),
        (metadata((0, "abc")), {"a": FULL, "b": FULL}, None),
        (metadata((0, "abc")), {"a": FULL, "b": FULL, "d": [(5, 9)]}, Kind.OUTDATED),
        (metadata((0, "abc"), (5, "abd")), {"a": FULL, "c": [(0, 4)], "d": [(5, 9)]}, None),
        (metadata((0, "abc"), (5, "abd")), {"a": FULL, "c": FULL, "d": [(5, 9)]}, Kind.OUTDATED),
        # Closed: a copy elsewhere is irrelevant while the named bookies hold everything.
        (metadata((0, "abc"), last=9), {"a": FULL, "b": FULL, "c": FULL, "d": FULL}, None),
        # The copy of c was moved to d, which would delete it as unnamed: one replica fewer than recorded.
        (metadata((0, "abc"), last=9), {"a": FULL, "b": FULL, "d": FULL}, Kind.OUTDATED),
        (metadata((0, "abc"), last=9), {"a": FULL, "b": FULL, "c": [(0, 4)], "d": [(3, 4)]}, None),
        (metadata((0, "abc"), last=9), {"a": FULL, "b": FULL, "c": [(0, 4)], "d": [(3, 5)]}, Kind.OUTDATED),
        (metadata((0, "abc"), last=9), {"d": FULL, "e": FULL}, Kind.OUTDATED),
        (metadata((0, "abc"), last=9), {"a": [(0, 4)], "d": FULL}, Kind.OUTDATED),
        (metadata((0, "abc"), (5, "abd"), last=9), {"a": [(0, 4)], "d": [(5, 9)]}, None),
        (
            metadata((0, "abc"), last=9),
            {"a": [(0, 4)]},
            None,
        ),  # lost on all bookies: newer metadata would not help
        (metadata((0, "abc"), last=9), {"a": FULL, "b": [], "c": FULL}, None),
    ],
)
async def test_difference_has_its_kind(
    stored: LedgerMetadata | None, held: dict[str, list[tuple[int, int]]], kind: Kind | None
) -> None:
    bookies: Any = Bookies(held)
    nodes: Any = Nodes(stored)
    found = await review(nodes, bookies, bookies.holdings())
    assert [one.kind for one in found.differences] == ([] if kind is None else [kind])
    assert not found.unsure


def striped(*absent: str) -> dict[str, list[tuple[int, int]]]:
    """Return ten entries, each on two of a, b and c, as written; and all of them on d. `absent`: entries removed."""
    rows = {name: [(e, e) for e in range(10) if (place - e) % 3 < 2] for place, name in enumerate("abc")}
    return {name: runs for name, runs in rows.items() if name not in absent} | {"d": FULL}


@pytest.mark.parametrize(("absent", "kind"), [((), []), (("c",), [Kind.OUTDATED])])
async def test_striped_bookie_lacks_only_its_own_entries(absent: tuple[str, ...], kind: list[Kind]) -> None:
    bookies: Any = Bookies(striped(*absent))
    nodes: Any = Nodes(replace(metadata((0, "abc"), last=9), write_quorum=2))
    found = await review(nodes, bookies, bookies.holdings())
    assert [one.kind for one in found.differences] == kind


@pytest.mark.parametrize(("newcomer", "kind"), [([(0, 12)], [Kind.OUTDATED]), ([(0, 9)], []), ([], [])])
async def test_bookie_accepted_after_an_adoption_may_hold_more(
    newcomer: list[tuple[int, int]], kind: list[Kind]
) -> None:
    bookies: Any = Bookies({"a": FULL, "b": FULL, "c": FULL, "d": newcomer})
    nodes: Any = Nodes(replace(metadata((0, "abc"), last=9), custom={ADOPTED: b"backup"}))
    found = await review(nodes, bookies, bookies.holdings())
    assert [one.kind for one in found.differences] == kind


async def test_no_ledger_is_gone_while_a_bookie_is_silent() -> None:
    bookies: Any = Bookies({})
    nodes: Any = Nodes(metadata((0, "abc"), last=9))
    assert (await review(nodes, bookies, bookies.holdings(silent=["c"]))).differences == []


async def test_ledger_that_cannot_be_compared_is_reported() -> None:
    bookies: Any = Bookies({"a": FULL, "d": FULL}, silent=["d"])
    nodes: Any = Nodes(metadata((0, "abc"), last=9))
    found = await review(nodes, bookies, bookies.holdings())
    assert found.unsure == {LEDGER: "d is away"} and found.differences == []


@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.integers(0, 30))
def test_missing_entries_are_those_not_held(held: set[int], first: int, last: int) -> None:
    runs = join_ranges([[(EntryId(one), EntryId(one))] for one in held])
    found = missing(EntryId(first), EntryId(last), runs)
    ids = [entry for start, end in found for entry in range(start, end + 1)]
    assert ids == [entry for entry in range(first, last + 1) if entry not in held]


async def test_orphan_in_quarantine_on_every_holder_reports_since_when() -> None:
    at_ms = 1_700_000_000_000
    bookies = Bookies({"a": FULL, "b": FULL})
    for times, quarantined in (((at_ms + 5, at_ms), True), ((at_ms, None), False), ((None, None), False)):
        holdings = bookies.holdings()
        for bookie, since_ms in zip(("a", "b"), times, strict=True):
            held = holdings.of[BookieId(bookie)]
            held[LEDGER] = replace(held[LEDGER], quarantined_ms=since_ms)
        questions: Any = bookies
        nodes: Any = Nodes(None)
        (one,) = (await review(nodes, questions, holdings)).differences
        assert (one.kind, one.quarantined) == (Kind.ORPHAN, quarantined)
        assert ("in quarantine since 2023-11-14T22:13:20+00:00" in one.why) == quarantined
