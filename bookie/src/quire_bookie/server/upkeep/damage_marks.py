"""Tells auto-recovery what the scrub of this bookie found: a note of the entries, then a mark of under-replication.

Owns what is still to be told, within a bound; it is found again by the next round of the scrub. Repairs nothing.
"""

import logging
from dataclasses import dataclass, field

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import MetadataError, MetadataFormatError, MetadataUnavailableError, NoSuchLedgerError
from quire_bookie.limits import SCRUB_REPORT_MAX
from quire_bookie.metadata.damage_notes import DamageNotes
from quire_bookie.metadata.layout import LEDGER_IDS_END
from quire_bookie.metadata.ledgers import LedgerNodes
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.metadata.under_replication import UnderReplication
from quire_bookie.model import BookieId, EntryId, LedgerId
from quire_bookie.storage.scrub import Damage

_log = logging.getLogger("quire.server.scrubbing")
_EVERYTHING = (EntryId(0), EntryId(LEDGER_IDS_END - 1))


@dataclass(slots=True)
class DamageMarks:
    """`found` remembers, `tell` writes. One per bookie."""

    metadata: MetadataStore
    clock: WallClock
    bookie: BookieId
    told: int = 0
    """Ledgers that were marked."""
    _due: dict[LedgerId, set[tuple[EntryId, EntryId]]] = field(default_factory=dict)

    def found(self, damage: Damage) -> None:
        """One finding. What belongs to no ledger, or nobody knows to which, is for a person."""
        if damage.ledger < 0 or (damage.ledger not in self._due and len(self._due) >= SCRUB_REPORT_MAX):
            return
        span = _EVERYTHING if damage.first < 0 else (damage.first, damage.last)
        self._due.setdefault(damage.ledger, set()).add(span)

    @property
    def due(self) -> int:
        """Ledgers that are still to be told."""
        return len(self._due)

    async def tell(self) -> None:
        """Write what is due, as far as the store takes it; the rest stays due, behind what is found meanwhile."""
        for ledger in list(self._due):
            # Taken out first: a finding that comes while this one is written is due again.
            spans = self._due.pop(ledger)
            try:
                await self._tell(ledger, spans)
            except MetadataError as error:
                _log.warning("cannot report the damage of ledger %d now, will try again: %s", ledger, error)
                # At the back: a ledger that never succeeds delays no other, in this call or the next.
                self._due.setdefault(ledger, set()).update(spans)
                if isinstance(error, MetadataUnavailableError):
                    return

    async def _tell(self, ledger: LedgerId, spans: set[tuple[EntryId, EntryId]]) -> None:
        try:
            metadata = (await LedgerNodes(self.metadata).read(ledger)).value
        except NoSuchLedgerError:
            return  # garbage collection takes its copies
        except MetadataFormatError as error:
            _log.error("ledger %d is damaged and needs manual repair: %s", ledger, error)
            return
        if any(self.bookie in segment.ensemble for segment in metadata.segments):
            # The note first: a worker that finds the mark reads there which entries are damaged.
            await DamageNotes(self.metadata).note(ledger, self.bookie, spans, self.clock.now_ms())
            await UnderReplication(self.metadata, self.clock).mark(ledger, [self.bookie])
            self.told += 1
