"""Decides when a ledger is full. Pure: decides from numbers, performs nothing."""

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from math import inf

from quire_bookie.dataclass import dataclass
from quire_broker.limits import LEDGER_ENTRIES_MAX, LEDGER_OVERGROWTH_MAX
from quire_broker.settings.managed_ledger import ManagedLedgerSettings


class RollReason(Enum):
    """Why a ledger gets a successor; values are user-visible."""

    ENTRIES = "entries"
    SIZE = "size"
    AGE = "age"
    DEGRADED = "a replica is missing"
    MARKED = "a replica is marked as missing, and nothing is written"
    ASKED = "asked"
    FAILED = "an append failed"


@dataclass(frozen=True, slots=True)
class LedgerLoad:
    """Load of the ledger being written: everything submitted to it, whether confirmed or not.

    `degraded`: its new entries have too few copies, and only a new ledger can change that. A writer replaces failed
    bookies by itself, but it cannot enlarge the ensemble of a ledger created with fewer than E bookies.
    """

    entries: int
    size_bytes: int
    age_s: float
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class RollConditions:
    """External conditions of a rollover."""

    metadata_reachable: bool
    ensemble_max: int
    """Bookies of the largest ensemble that could be created."""


def may_roll(around: RollConditions, settings: ManagedLedgerSettings) -> bool:
    """Return whether a successor could be created now. Otherwise the open ledger is used until it `is_overgrown`."""
    return around.metadata_reachable and around.ensemble_max >= settings.ensemble_size


def reason_to_roll(load: LedgerLoad, settings: ManagedLedgerSettings) -> RollReason | None:
    """Return the rule by which the ledger is full, or None.

    The minimum age delays the three rules about size and age. A missing replica waits only for a short interval,
    because each further entry in the degraded ledger has too few copies.
    """
    if load.degraded and load.age_s >= settings.degraded_rollover_interval_s:
        return RollReason.DEGRADED  # also without an entry, so that its first entry gets all replicas
    if load.entries == 0:
        return None
    if settings.rollover_age_min_s > 0 and load.age_s <= settings.rollover_age_min_s:
        return None
    if load.entries >= settings.ledger_entries_max:
        return RollReason.ENTRIES
    if load.size_bytes >= settings.ledger_bytes_max:
        return RollReason.SIZE
    if load.age_s >= settings.rollover_age_max_s:
        return RollReason.AGE
    return None


def age_to_roll_s(load: LedgerLoad, settings: ManagedLedgerSettings) -> float:
    """Return the age at which `reason_to_roll` finds a reason if nothing more is submitted; inf: at none."""
    ages = [settings.degraded_rollover_interval_s] if load.degraded else []
    if load.entries:
        is_full = load.entries >= settings.ledger_entries_max or load.size_bytes >= settings.ledger_bytes_max
        ages.append(settings.rollover_age_min_s if is_full else settings.rollover_age_max_s)
    return min(ages, default=inf)


def is_filled(load: LedgerLoad, entries: int, size_bytes: int, settings: ManagedLedgerSettings) -> bool:
    """Return whether these entries exceed a bound of the ledger and the rules then allow a rollover."""
    bound = settings.ledger_entries_max
    if load.entries + entries <= bound and load.size_bytes + size_bytes <= settings.ledger_bytes_max:
        return False
    return reason_to_roll(replace(load, entries=bound), settings) is not None


def fitting(load: LedgerLoad, sizes_bytes: Iterable[int], settings: ManagedLedgerSettings) -> int:
    """Return how many entries of these sizes fit into the ledger. The entry that fills it is its last."""
    entries, size_bytes, count = load.entries, load.size_bytes, 0
    for size in sizes_bytes:
        count, entries, size_bytes = count + 1, entries + 1, size_bytes + size
        if entries >= settings.ledger_entries_max or size_bytes >= settings.ledger_bytes_max:
            break
    return count


def is_overgrown(load: LedgerLoad, settings: ManagedLedgerSettings) -> bool:
    """Return whether the ledger accepts nothing more although no successor can be created.

    Appends then wait and fail.
    """
    return load.size_bytes >= settings.ledger_bytes_max * LEDGER_OVERGROWTH_MAX or load.entries >= LEDGER_ENTRIES_MAX
