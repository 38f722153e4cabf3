"""What is to be done about bookies that a person wants emptied. Pure: what was seen comes in, nothing is asked.

A bookie is *let go* only while as many others stay writable as the largest ensemble of any ledger needs; those let go
before it count as gone. That holds for one that is away as well: it may be back in a moment, and be missed then.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from quire_bookie.limits import DRAIN_NAMED_MAX
from quire_bookie.metadata.drains import Drain, Progress, Wish
from quire_bookie.model import BookieId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.wanted_copies import wanted_copies
from quire_bookie.recovery.fragments import closed_fragments


@dataclass(slots=True)
class Census:
    """What one walk through the metadata saw of one bookie. Bounded: it names at most `DRAIN_NAMED_MAX` ledgers."""

    ledgers: int = 0
    size_bytes: int = 0
    open: int = 0
    unrecoverable: int = 0
    undecodable: int = 0
    """Nodes that contain its id and are no metadata that is known here."""
    ensemble_max: int = 0
    """Of all ledgers that were looked at, whether they name it or not: each may have to move a replica some day."""
    largest: LedgerId | None = None
    """A ledger with that ensemble."""
    open_named: list[LedgerId] = field(default_factory=list)
    unrecoverable_named: list[LedgerId] = field(default_factory=list)

    def saw(
        self,
        ledger: LedgerId,
        metadata: LedgerMetadata,
        bookie: BookieId,
        *,
        unrecoverable: bool,
        unmarked: int = 0,
    ) -> bool:
        """Count one ledger; whether it names the bookie. `unmarked`: see `wanted_copies`."""
        is_open = metadata.state is not LedgerState.CLOSED
        named = names(metadata, bookie)
        # A narrow ledger needs as many bookies as it wants copies, not as many as it has.
        size = max(metadata.ensemble_size, wanted_copies(metadata, unmarked))
        if size > self.ensemble_max:
            self.ensemble_max, self.largest = size, ledger
        if not named:
            return False
        self.ledgers += 1
        self.size_bytes += replica_bytes(metadata, bookie)
        if is_open and bookie in metadata.segments[-1].ensemble:
            self.open += 1
            _remember(self.open_named, ledger)
        if unrecoverable:
            self.unrecoverable += 1
            _remember(self.unrecoverable_named, ledger)
        return True


def _remember(named: list[LedgerId], ledger: LedgerId) -> None:
    if len(named) < DRAIN_NAMED_MAX:
        named.append(ledger)


def names(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether any segment names the bookie, also one without entries."""
    return any(bookie in segment.ensemble for segment in metadata.segments)


def replica_bytes(metadata: LedgerMetadata, bookie: BookieId) -> int:
    """About how many payload bytes the bookie holds of a closed ledger's fragments; 0 where its length is not known."""
    if metadata.state is not LedgerState.CLOSED or metadata.last_entry < 0:
        return 0
    entries = 0.0
    for fragment in closed_fragments(metadata):
        if bookie in fragment.ensemble:
            entries += (fragment.last - fragment.first + 1) * fragment.write_quorum / len(fragment.ensemble)
    return int(metadata.length * entries / (metadata.last_entry + 1))


def let_go(
    drains: tuple[Drain, ...],
    writable: Collection[BookieId],
    needed: Mapping[BookieId, int],
) -> tuple[Drain, ...]:
    """The wishes, with as many more bookies let go as there is room for, the oldest wish first.

    `needed`: writable bookies that must stay, by the bookie that would leave; one that is not in it is not let go.
    """
    # One whose drain is taken back counts as gone until it was given back: the wish may be said anew before.
    gone = {one.bookie for one in drains if one.leaving}
    found = []
    for one in drains:
        if not one.leaving and one.wish is not Wish.CANCEL and one.bookie in needed:
            left = set(writable) - gone - {one.bookie}
            if len(left) >= needed[one.bookie]:
                gone.add(one.bookie)
                one = replace(one, leaving=True, made_read_only=one.bookie in writable)
        found.append(one)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What else decides whether a drain can go on."""

    writable: frozenset[BookieId]
    leaving: frozenset[BookieId]
    enabled: bool
    """Auto-recovery is switched on."""
    refused: str | None = None
    """Why the bookie could not be made read-only, or writable again."""


def blockers(drain: Drain, census: Census, around: Surroundings) -> tuple[str, ...]:
    """What keeps a drain from going on or from ending, for a person, with what to do."""
    found = []
    stay = around.writable - around.leaving - {drain.bookie}
    if not around.enabled:
        found.append("auto-recovery is switched off: `quire cluster autorecovery on`")
    if around.refused is not None:
        found.append(around.refused)
    if len(stay) < census.ensemble_max and (census.ledgers or not drain.leaving):
        found.append(
            f"{len(stay)} other bookies are writable, under the ensemble of {census.ensemble_max} of ledger "
            f"{census.largest}: add a bookie, or make one writable"
        )
    if not drain.leaving:
        return tuple(found)
    if census.unrecoverable:
        found.append(
            f"{census.unrecoverable} ledgers have entries that no replica could serve ({_list(census, 'bad')}): see "
            "`quire cluster unrecoverable`; bring their bookies back, or accept the loss with --accept-loss LEDGER"
        )
    if census.undecodable:
        found.append(f"the metadata of {census.undecodable} ledgers that name it cannot be read; the log names them")
    if census.open:
        found.append(
            f"{census.open} ledgers are open on it ({_list(census, 'open')}): their writers leave it with their next "
            "append, or the ledgers are closed after the grace period when nobody writes"
        )
    return tuple(found)


def _list(census: Census, kind: str) -> str:
    named, count = (
        (census.open_named, census.open) if kind == "open" else (census.unrecoverable_named, census.unrecoverable)
    )
    return ", ".join(map(str, named)) + (", ..." if count > len(named) else "")


def eta_s(bytes_first: int, bytes_left: int, ledgers_first: int, ledgers_left: int, elapsed_s: float) -> int | None:
    """Seconds until nothing is left at the rate so far: by bytes, or by ledgers where they are empty; None: unknown."""
    for first, left in ((bytes_first, bytes_left), (ledgers_first, ledgers_left)):
        if left <= 0:
            continue
        done = first - left
        return None if done <= 0 or elapsed_s <= 0 else int(left * elapsed_s / done) + 1
    return 0 if ledgers_left <= 0 else None


def progress(
    drain: Drain, census: Census, around: Surroundings, before: Progress | None, now_ms: int, *, emptied: bool
) -> Progress:
    """What people are told after one look."""
    if drain.wish is Wish.CANCEL:
        state = "cancelling"
    elif not drain.leaving:
        state = "waiting"
    else:
        state = "emptied" if emptied else "leaving"
    # A drain that only begins, or one whose progress is that of an earlier drain of the same bookie.
    fresh = before is None or before.state in ("waiting", "cancelling") or before.began_ms < drain.since_ms
    if before is None or fresh:
        first, first_bytes, began_ms = census.ledgers, census.size_bytes, now_ms
    else:
        first = max(before.ledgers_first, census.ledgers)
        first_bytes, began_ms = max(before.bytes_first, census.size_bytes), before.began_ms
    return Progress(
        drain.bookie,
        state,
        census.ledgers,
        census.size_bytes,
        first,
        first_bytes,
        began_ms,
        now_ms,
        eta_s(first_bytes, census.size_bytes, first, census.ledgers, (now_ms - began_ms) / 1000)
        if drain.leaving
        else None,
        () if emptied else blockers(drain, census, around),
    )
