"""When a ledger is full. Pure: decides from numbers, performs nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from quire_broker.limits import LEDGER_ENTRIES_MAX, LEDGER_OVERGROWTH_MAX
from quire_broker.managed_ledger.settings import ManagedLedgerSettings


class RollReason(Enum):
    """Why a ledger gets a successor."""

    ENTRIES = "entries"
    SIZE = "size"
    AGE = "age"
    DEGRADED = "a replica is missing"
    ASKED = "asked"
    FAILED = "an append failed"


@dataclass(frozen=True, slots=True)
class LedgerLoad:
    """What counts about the ledger being written: everything submitted to it, whether confirmed or not.

    `degraded`: its new entries have too few copies, and only a new ledger can change that. A writer replaces lost
    bookies by itself; what it cannot do is give more of them to a ledger made with fewer than E.
    """

    entries: int
    size_bytes: int
    age_s: float
    degraded: bool = False


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a roll needs from outside."""

    metadata_reachable: bool
    writable_bookies: int


def may_roll(around: Surroundings, settings: ManagedLedgerSettings) -> bool:
    """Whether a successor could be made now. Otherwise the open ledger goes on until it `is_overgrown`."""
    return around.metadata_reachable and around.writable_bookies >= settings.ensemble_size


def reason_to_roll(load: LedgerLoad, settings: ManagedLedgerSettings) -> RollReason | None:
    """Which rule says that the ledger is full; None: it is not.

    The minimum age holds back the three rules about size and age. A missing replica does not wait for it, only for a
    short interval: each further entry in the degraded ledger is one with too few copies.
    """
    if load.degraded and load.age_s >= settings.degraded_rollover_interval_s:
        return RollReason.DEGRADED  # also without an entry: its first one should find all replicas
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


def is_filled(load: LedgerLoad, entries: int, size_bytes: int, settings: ManagedLedgerSettings) -> bool:
    """Whether these entries bring the ledger beyond a bound, and the rules let it roll then."""
    bound = settings.ledger_entries_max
    if load.entries + entries <= bound and load.size_bytes + size_bytes <= settings.ledger_bytes_max:
        return False
    return reason_to_roll(replace(load, entries=bound), settings) is not None


def fitting(load: LedgerLoad, sizes_bytes: Iterable[int], settings: ManagedLedgerSettings) -> int:
    """How many of the entries of these sizes the ledger takes: the one that fills it is its last."""
    entries, size_bytes, count = load.entries, load.size_bytes, 0
    for size in sizes_bytes:
        count, entries, size_bytes = count + 1, entries + 1, size_bytes + size
        if entries >= settings.ledger_entries_max or size_bytes >= settings.ledger_bytes_max:
            break
    return count


def is_overgrown(load: LedgerLoad, settings: ManagedLedgerSettings) -> bool:
    """Whether the ledger takes nothing more although no successor can be made: appends wait, and then fail."""
    return load.size_bytes >= settings.ledger_bytes_max * LEDGER_OVERGROWTH_MAX or load.entries >= LEDGER_ENTRIES_MAX
