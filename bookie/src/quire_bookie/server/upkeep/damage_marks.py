"""Reports damage on this bookie to auto-recovery: a note of the entries, then a mark of under-replication.

Owns the pending findings, up to a bound; the next round of the scrub finds the others again. Repairs nothing.
"""

import logging
from dataclasses import field

from quire_bookie.dataclass import dataclass
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
    """Collects the findings of one bookie with `found` and writes them with `report`."""

    metadata: MetadataStore
    clock: WallClock
    bookie: BookieId
    reported: int = 0
    """Ledgers that were marked."""
    _due: dict[LedgerId, set[tuple[EntryId, EntryId]]] = field(default_factory=dict)

    def found(self, damage: Damage) -> None:
        """Add a finding. Ignored without a known ledger: an administrator must handle it."""
        if damage.ledger < 0 or (damage.ledger not in self._due and len(self._due) >= SCRUB_REPORT_MAX):
            return
        span = _EVERYTHING if damage.first < 0 else (damage.first, damage.last)
        self._due.setdefault(damage.ledger, set()).add(span)

    @property
    def due(self) -> int:
        """The number of ledgers to report."""
        return len(self._due)

    async def report(self) -> None:
        """Write pending findings as far as the metadata store accepts them; the rest queues behind newer ones."""
        for ledger in list(self._due):
            # Removed first: a finding during the write must be reported again.
            spans = self._due.pop(ledger)
            try:
                await self._report(ledger, spans)
            except MetadataError as error:
                _log.warning("cannot report the damage of ledger %d now, will try again: %s", ledger, error)
                # Last in order: a ledger that always fails does not delay others, in this call or the next.
                self._due.setdefault(ledger, set()).update(spans)
                if isinstance(error, MetadataUnavailableError):
                    return

    async def _report(self, ledger: LedgerId, spans: set[tuple[EntryId, EntryId]]) -> None:
        try:
            metadata = (await LedgerNodes(self.metadata).read(ledger)).value
        except NoSuchLedgerError:
            return  # garbage collection removes its copies
        except MetadataFormatError as error:
            _log.error("ledger %d is damaged and needs manual repair: %s", ledger, error)
            return
        if any(self.bookie in segment.ensemble for segment in metadata.segments):
            # The note first: a worker that finds the mark reads the damaged entries from it.
            await DamageNotes(self.metadata).note(ledger, self.bookie, spans, self.clock.now_ms())
            await UnderReplication(self.metadata, self.clock).mark(ledger, [self.bookie])
            self.reported += 1
