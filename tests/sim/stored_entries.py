"""Checks the entries that the bookies of a simulation hold, directly in their storage and not through a client.

The central guarantee (`AckedIsKept` of docs/protocol.md): each acknowledged entry is on Qa of the bookies that the
metadata name for it, so that any Qa-1 disks may be lost. A check by reads notices a violation only when the wrong disks
are lost; this one notices it at once.
"""

from quire_bookie.errors import NoSuchEntryError, NoSuchLedgerError, QuireError
from quire_bookie.metadata import layout
from quire_bookie.metadata.ledger_metadata import decode_ledger_metadata
from quire_bookie.model import BookieId, EntryId, LedgerId, LedgerMetadata
from quire_bookie.quorum.write_set import write_set
from quire_bookie.wire.digest import Digest
from tests.sim.history import HistoryError, LedgerHistory
from tests.sim.world import SimBookie, World


def stored_metadata(world: World, ledger: LedgerId) -> LedgerMetadata:
    """Return the ledger's current metadata directly from the server's state."""
    return decode_ledger_metadata(world.metadata.nodes[layout.ledger_path(ledger)].value)


def place_of(world: World, bookie: BookieId) -> SimBookie | None:
    """Return the simulated bookie of an id, or None if it does not run."""
    for place in world.bookies.values():
        if place.running is not None and place.node is not None and place.running.bookie_id == bookie:
            return place
    return None


async def trouble_with(
    world: World, ledger: LedgerId, metadata: LedgerMetadata, bookie: BookieId, entry: EntryId, payload: bytes
) -> str:
    """Return why a bookie does not serve an entry; empty if it does. HistoryError if it serves other bytes."""
    place = place_of(world, bookie)
    if place is None or place.node is None or place.running is None:
        return "it is down"
    try:
        data = await world.loop.run_on(place.node, place.running.storage.read(ledger, entry))
        digest = Digest(metadata.digest_type, metadata.password)
        found = bytes(digest.decode_entry(data, ledger, entry).payload)
    except (NoSuchEntryError, NoSuchLedgerError):
        return "it does not have it"
    except QuireError as error:
        return str(error)
    if found != payload:
        raise HistoryError(f"ledger {ledger} entry {entry} at {bookie} has other bytes")
    return ""


async def check_copies(
    world: World,
    ledger: LedgerId,
    history: LedgerHistory,
    last: EntryId,
    *,
    lossy: frozenset[BookieId] = frozenset(),
) -> dict[BookieId, EntryId]:
    """Raise HistoryError unless each entry up to `last` is on Qa of the bookies that are named for it now.

    All bookies are up. `lossy`: bookies whose disks were lost or damaged; they count as holding everything. Returns the
    first missing entry of each bookie that lacks entries for which it is named.
    """
    metadata = stored_metadata(world, ledger)
    lacking: dict[BookieId, EntryId] = {}
    for number in range(last + 1):
        entry = EntryId(number)
        ensemble = metadata.ensemble_of(entry)
        held, missing = 0, []
        for position in write_set(entry, metadata.ensemble_size, metadata.write_quorum):
            bookie = ensemble[position]
            trouble = ""
            if bookie not in lossy:
                trouble = await trouble_with(world, ledger, metadata, bookie, entry, history.submitted[number])
            if trouble:
                missing.append(f"{bookie}: {trouble}")
                lacking.setdefault(bookie, entry)
            else:
                held += 1
        if held < metadata.ack_quorum:
            raise HistoryError(
                f"entry {entry} was acknowledged, or is in the closed ledger, and {held} of its bookies have it "
                f"where {metadata.ack_quorum} must: {'; '.join(missing)}"
            )
    return lacking
