"""Decides what happens with bookies that an administrator drains. Pure: works on observed values, sends no requests.

A bookie is *let go* only while enough other bookies stay writable for the largest ensemble of any ledger. Bookies that
were let go before count as gone. The rule also holds for a bookie that is away: it may return, and its later loss would
then leave too few bookies.
"""

from collections.abc import Collection, Mapping
from dataclasses import field, replace

from quire_bookie.dataclass import dataclass
from quire_bookie.limits import DRAIN_NAMED_MAX
from quire_bookie.metadata.drains import Drain, Progress, Wish
from quire_bookie.model import BookieId, LedgerId, LedgerMetadata, LedgerState
from quire_bookie.quorum.wanted_copies import wanted_copies
from quire_bookie.recovery.fragments import closed_fragments


@dataclass(slots=True)
class Census:
    """Counts the ledgers of one bookie in one walk through the metadata. Names at most `DRAIN_NAMED_MAX` ledgers."""

    ledgers: int = 0
    size_bytes: int = 0
    open: int = 0
    unrecoverable: int = 0
    undecodable: int = 0
    """Nodes that contain the bookie's id and cannot be decoded."""
    ensemble_max: int = 0
    """The largest ensemble of all ledgers, with or without this bookie: each may have to move a replica one day."""
    largest: LedgerId | None = None
    """A ledger with that ensemble."""
    open_named: list[LedgerId] = field(default_factory=list)
    unrecoverable_named: list[LedgerId] = field(default_factory=list)

    def count_ledger(
        self,
        ledger: LedgerId,
        metadata: LedgerMetadata,
        bookie: BookieId,
        *,
        unrecoverable: bool,
        unmarked: int = 0,
    ) -> bool:
        """Count one ledger and return whether it names the bookie. `unmarked`: see `wanted_copies`."""
        is_open = metadata.state is not LedgerState.CLOSED
        named = names(metadata, bookie)
        # A narrow ledger needs a bookie for each copy it wants, not only for those it has.
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
    """Return whether any segment names the bookie, even a segment without entries."""
    return any(bookie in segment.ensemble for segment in metadata.segments)


def replica_bytes(metadata: LedgerMetadata, bookie: BookieId) -> int:
    """Estimate the payload bytes that the bookie holds of a closed ledger; 0 if the ledger's length is unknown."""
    if metadata.state is not LedgerState.CLOSED or metadata.last_entry < 0:
        return 0
    entries = 0.0
    for fragment in closed_fragments(metadata):
        if bookie in fragment.ensemble:
            entries += (fragment.last - fragment.first + 1) * fragment.write_quorum / len(fragment.ensemble)
    return int(metadata.length * entries / (metadata.last_entry + 1))


def start_leaving(
    drains: tuple[Drain, ...],
    writable: Collection[BookieId],
    needed: Mapping[BookieId, int],
) -> tuple[Drain, ...]:
    """Return the drains with as many more bookies let go as the cluster can spare, oldest request first.

    `needed`: by bookie, the number of other writable bookies that must stay; a bookie that is not in it is not let go.
    """
    # A bookie with a cancelled drain counts as gone until it is writable again: a new drain may be requested before.
    gone = {one.bookie for one in drains if one.leaving}
    found = []
    for one in drains:
        if not one.leaving and one.wish is not Wish.CANCEL and one.bookie in needed:
            left = set(writable) - gone - {one.bookie}
            if len(left) >= needed[one.bookie]:
                gone.add(one.bookie)
                one = replace(one, leaving=True, made_read_only=one.bookie in writable)
        found.append(one)
    assert all(now.leaving or not before.leaving for before, now in zip(drains, found, strict=True))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class DrainContext:
    """Other facts that decide whether a drain can proceed."""

    writable: frozenset[BookieId]
    leaving: frozenset[BookieId]
    enabled: bool
    """Whether auto-recovery is switched on."""
    refused: str | None = None
    """Why the bookie could not be made read-only, or writable again."""


def blockers(drain: Drain, census: Census, around: DrainContext) -> tuple[str, ...]:
    """Return the reasons why a drain cannot proceed or finish, each with its remedy, as texts for the administrator."""
    found = []
    stay = around.writable - around.leaving - {drain.bookie}
    if not around.enabled:
        found.append("auto-recovery is switched off: `quire cluster autorecovery on`")
    if around.refused is not None:
        found.append(around.refused)
    if len(stay) < census.ensemble_max and (census.ledgers or not drain.leaving):
        found.append(
            f"{len(stay)} other bookies are writable, fewer than the ensemble of {census.ensemble_max} of ledger "
            f"{census.largest}: add a bookie, or make one writable"
        )
    if not drain.leaving:
        return tuple(found)
    if census.unrecoverable:
        found.append(
            f"{census.unrecoverable} ledgers have entries that no replica can serve ({_list(census, 'bad')}): see "
            "`quire cluster unrecoverable`; start their bookies again, or accept the loss with --accept-loss LEDGER"
        )
    if census.undecodable:
        found.append(f"the metadata of {census.undecodable} ledgers on it cannot be read; see the log of the auditor")
    if census.open:
        found.append(
            f"{census.open} ledgers are open on it ({_list(census, 'open')}): their writers replace it with their next "
            "append; ledgers without a writer are closed after the grace period"
        )
    return tuple(found)


def _list(census: Census, kind: str) -> str:
    named, count = (
        (census.open_named, census.open) if kind == "open" else (census.unrecoverable_named, census.unrecoverable)
    )
    return ", ".join(map(str, named)) + (", ..." if count > len(named) else "")


def eta_s(bytes_first: int, bytes_left: int, ledgers_first: int, ledgers_left: int, elapsed_s: float) -> int | None:
    """Return the seconds until nothing is left, at the rate so far; None if unknown.

    Counts bytes, or ledgers if no bytes are left.
    """
    for first, left in ((bytes_first, bytes_left), (ledgers_first, ledgers_left)):
        if left <= 0:
            continue
        done = first - left
        return None if done <= 0 or elapsed_s <= 0 else int(left * elapsed_s / done) + 1
    return 0 if ledgers_left <= 0 else None


def progress(
    drain: Drain, census: Census, around: DrainContext, before: Progress | None, now_ms: int, *, emptied: bool
) -> Progress:
    """Return the progress that is published after one walk."""
    if drain.wish is Wish.CANCEL:
        state = "cancelling"
    elif not drain.leaving:
        state = "waiting"
    else:
        state = "emptied" if emptied else "leaving"
    # The drain just began, or the stored progress belongs to an earlier drain of the same bookie.
    fresh = before is None or before.state in ("waiting", "cancelling") or before.began_ms < drain.since_ms
    if before is None or fresh:
        first, first_bytes, began_ms = census.ledgers, census.size_bytes, now_ms
    else:
        first = max(before.ledgers_first, census.ledgers)
        first_bytes, began_ms = max(before.bytes_first, census.size_bytes), before.began_ms
    assert census.ledgers <= first and census.size_bytes <= first_bytes, "no more is left than at the start"
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
