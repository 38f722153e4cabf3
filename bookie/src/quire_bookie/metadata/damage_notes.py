"""Owns the nodes that record which entries of a ledger a bookie's scrub found damaged, for the repair.

/quire/damage/L%019d/<bookie>   JSON {"ranges": [[first, last], ...], "found_ms"}

An under-replication mark names the bookie but not the entries: damage in the middle of a replica shows neither at its
ends nor in its list of entries. A note is removed once its entries were found intact, if it has not changed since.
"""

import json
from collections.abc import Iterable

from quire_bookie.dataclass import dataclass
from quire_bookie.errors import BadVersionError, MetadataUnavailableError, MetadataUnknownError
from quire_bookie.limits import DAMAGE_RANGES_MAX, METADATA_UNKNOWN_RETRIES
from quire_bookie.metadata.store import ABSENT, MetadataStore, Node
from quire_bookie.model import BookieId, EntryId, LedgerId

DAMAGE = "/quire/damage"


@dataclass(frozen=True, slots=True)
class DamageNote:
    """Entries of a ledger that a bookie should have and cannot serve, found by its scrub. Ascending ranges."""

    bookie: BookieId
    ranges: tuple[tuple[EntryId, EntryId], ...]
    version: int


def _folder(ledger: LedgerId) -> str:
    return f"{DAMAGE}/L{ledger:019d}/"


def _decode(bookie: BookieId, node: Node) -> DamageNote:
    """Decode a note. An invalid one has no ranges, so that the next repair removes it."""
    try:
        found = [(EntryId(int(first)), EntryId(int(last))) for first, last in json.loads(node.value)["ranges"]]
    except (ValueError, KeyError, TypeError, OverflowError):
        found = []
    return DamageNote(bookie, tuple(found), node.version)


def joined(ranges: Iterable[tuple[EntryId, EntryId]]) -> tuple[tuple[EntryId, EntryId], ...]:
    """Merge ids into ascending ranges; beyond the maximum number, the last range spans the rest. Pure."""
    found: list[tuple[EntryId, EntryId]] = []
    for first, last in sorted(ranges):
        if found and (first <= found[-1][1] + 1 or len(found) == DAMAGE_RANGES_MAX):
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


class DamageNotes:
    """Reads and writes the damage notes of a cluster."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def note(
        self, ledger: LedgerId, bookie: BookieId, ranges: Iterable[tuple[EntryId, EntryId]], now_ms: int
    ) -> None:
        """Add ranges to a note. MetadataError: the outcome is unknown or it was not written; call again."""
        key = f"{_folder(ledger)}{bookie}"
        wanted = tuple(ranges)
        unknown: MetadataUnknownError | None = None
        for _ in range(METADATA_UNKNOWN_RETRIES):
            node = await self._store.get(key)
            known = () if node is None else _decode(bookie, node).ranges
            merged = joined((*known, *wanted))
            if node is not None and merged == known:
                return
            value = json.dumps({"ranges": merged, "found_ms": now_ms}).encode()
            try:
                await self._store.put(key, value, expected=ABSENT if node is None else node.version)
                return
            except BadVersionError:
                continue
            except MetadataUnknownError as error:
                unknown = error
        raise unknown or MetadataUnavailableError(
            f"{key} was changed {METADATA_UNKNOWN_RETRIES} times meanwhile; try again"
        )

    async def read(self, ledger: LedgerId) -> list[DamageNote]:
        """Return the notes of a ledger. MetadataUnavailableError."""
        found: list[DamageNote] = []
        folder = _folder(ledger)
        async for page in self._store.scan(folder):
            found += [_decode(BookieId(node.key.removeprefix(folder)), node) for node in page]
        return found

    async def clear(self, ledger: LedgerId, note: DamageNote) -> None:
        """Remove a note unless it has changed since. After an unknown outcome it is examined again later."""
        try:
            await self._store.delete(f"{_folder(ledger)}{note.bookie}", expected=note.version)
        except (BadVersionError, MetadataUnknownError):
            return
