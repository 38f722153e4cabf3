"""Tests that a read whose replicas move repeatedly ends, and that unknown entries are not reported as missing."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from quire_bookie.client.ledger_entry import LedgerEntry
from quire_bookie.client.ledger_handle import LedgerHandle
from quire_bookie.client.reading.moved_replicas import read_where_stored
from quire_bookie.errors import NoSuchEntryError, QuorumError
from quire_bookie.metadata.store import Versioned
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata, Segment


def _moves() -> Iterator[LedgerMetadata]:
    for number in range(100):
        yield LedgerMetadata(1, 1, 1, (Segment(EntryId(0), (BookieId(f"b{number}"),)),))


@dataclass
class _Moving:
    """Replaces a handle and its nodes."""

    ledger: LedgerId = field(default=LedgerId(1))
    moves: Iterator[LedgerMetadata] = field(default_factory=_moves)

    @property
    def nodes(self) -> "_Moving":
        return self

    async def read(self, ledger: LedgerId) -> Versioned[LedgerMetadata]:
        return Versioned(next(self.moves), 1)


async def test_an_entry_is_not_reported_as_missing_while_its_replicas_move_repeatedly() -> None:
    moving, asked = _Moving(), list[BookieId]()

    async def read(known: LedgerMetadata) -> list[LedgerEntry]:
        asked.extend(known.segments[0].ensemble)
        raise NoSuchEntryError("the entry is missing")

    with pytest.raises(QuorumError, match="moved"):
        await read_where_stored(cast(LedgerHandle, moving), next(moving.moves), read)
    assert asked == ["b0", "b1", "b2", "b3", "b4"]


@pytest.mark.parametrize(("token", "follows"), [(7, True), (0, True), (None, True), (8, False)])
async def test_replicas_are_followed_within_one_ledger_even_if_java_dropped_its_token(
    token: int | None, follows: bool
) -> None:
    here, there, *_ = _moves()
    known = replace(here, c_token=7)
    moving = _Moving(moves=iter([replace(there, c_token=token)]))

    async def read(by: LedgerMetadata) -> list[LedgerEntry]:
        if by is known:
            raise NoSuchEntryError("the entry is missing")
        return []

    if follows:
        assert (await read_where_stored(cast(LedgerHandle, moving), known, read)).metadata.segments == there.segments
    else:
        with pytest.raises(NoSuchEntryError):
            await read_where_stored(cast(LedgerHandle, moving), known, read)
