"""Completes the repair of the embedded store: raises its id counters and opens a review where that is needed. Pure.

The counter of ledger ids ends above every id that a bookie holds or remembers. The store comes back under the review
that follows a restore when commits are lost, or when the end of the store is not proved and bookies hold newer ledgers
than the metadata names. Then nothing is deleted, no broker starts, and the operator decides about each ledger with
`quire metadata orphans`.

Where neither copy of the store proves its nodes, a new store begins with what the bookies prove: cluster id and
cookies. The metadata then names no ledger.
"""

from collections.abc import Iterable, Mapping

from quire_bookie.backup.counters import COUNTER_MARGIN, high_of, high_path, highest_high
from quire_bookie.backup.format import BackupError
from quire_bookie.backup.offline_holdings import OfflineHoldings
from quire_bookie.backup.restore import HIGH_MARGIN
from quire_bookie.dataclass import dataclass
from quire_bookie.metadata import layout
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.cookies import Cookie, encode_cookie
from quire_bookie.metadata.epoch import EPOCH_NONE, EPOCH_PATH, decode_epoch, encode_epoch, next_epoch
from quire_bookie.metadata.local.change_format import Value
from quire_bookie.metadata.local.repair import RepairPlan
from quire_bookie.metadata.recovery_controls import DISABLE
from quire_bookie.metadata.restoration import RESTORATION, Restoration, RestorationState, encode_restoration
from quire_bookie.model import LedgerId

Nodes = dict[bytes, Value]


@dataclass(frozen=True, slots=True)
class Completed:
    """The additions to a plan. `unnamed`: ledgers that bookies hold and the metadata does not name."""

    unnamed: tuple[LedgerId, ...]
    counter_was: int
    counter: int
    under_review: bool


def complete(plan: RepairPlan, held: OfflineHoldings, *, name: str, now_ms: int) -> Completed:
    """Raise the counters among the plan's nodes, and open a review where that is needed. Changes the plan."""
    nodes = plan.nodes
    named = {ledger for key in nodes if (ledger := layout.ledger_of_path(key.decode())) is not None}
    unnamed = tuple(sorted(set(held.live) - named))
    was = _version(nodes, layout.ID_COUNTER)
    newer = any(ledger > max(was, max(named, default=-1)) for ledger in unnamed)
    review = plan.last is None or plan.lost is not None or (not plan.end_proved and newer)
    counter = _raise_short(nodes, held.seen | named, margin=COUNTER_MARGIN if review else 0)
    high = _raise_long(nodes, held.seen | named)
    if review:
        _put_under_review(nodes, name=name, now_ms=now_ms, high=high, short_ids=counter)
    return Completed(unnamed, was, counter, review)


def begin_anew(plan: RepairPlan, cookies: Mapping[str, Cookie]) -> None:
    """Give a plan that proves nothing the nodes that the bookies prove: cluster id and cookies. Changes the plan.

    `cookies`: by the name of the bookie. BackupError: they do not all belong to one cluster.
    """
    clusters = {cookie.instance_id for cookie in cookies.values()}
    if len(clusters) != 1 or None in clusters:
        found = ", ".join(f"{name}: {cookie.instance_id}" for name, cookie in sorted(cookies.items()))
        raise BackupError(f"the bookies do not belong to one cluster ({found or 'no bookie'}); nothing was changed")
    [cluster] = clusters
    empty = (layout.ROOT, layout.AVAILABLE, layout.READ_ONLY)
    plan.nodes = {key.encode(): (0, b"") for key in empty}
    plan.nodes[layout.INSTANCE_ID.encode()] = (0, f"{cluster}".encode())
    for cookie in cookies.values():
        plan.nodes[layout.cookie_path(cookie.bookie).encode()] = (0, encode_cookie(cookie))


def _raise_short(nodes: Nodes, ids: Iterable[LedgerId], margin: int) -> int:
    highest = max((one for one in ids if one < layout.SHORT_LEDGER_IDS_END), default=-1)
    was = _version(nodes, layout.ID_COUNTER)
    now = max(was + margin, highest + margin)
    if now > was:
        nodes[layout.ID_COUNTER.encode()] = (now, b"")
    return max(was, now)


def _raise_long(nodes: Nodes, ids: Iterable[LedgerId]) -> int:
    """Give new long ids a high half above those on the bookies; return the highest high half in use."""
    held = highest_high(ids)
    counted = max((high for key in nodes if (high := high_of(key.decode())) is not None), default=0)
    if held > counted:
        nodes[layout.LONG_ID_COUNTERS.encode()] = (0, b"")
        nodes[high_path(held + 1).encode()] = (0, b"")
        return held + 1
    return counted


def _put_under_review(nodes: Nodes, *, name: str, now_ms: int, high: int, short_ids: int) -> None:
    reserved = high + HIGH_MARGIN
    cluster = nodes.get(layout.INSTANCE_ID.encode(), (0, b""))[1].decode(errors="replace")
    restoration = Restoration(
        backup=name,
        cluster=cluster,
        state=RestorationState.REVIEW,
        since_ms=now_ms,
        reserved_high=reserved,
        short_ids_given=short_ids,
        recovery_was_off=DISABLE.encode() in nodes,
    )
    reason = f"the metadata was repaired ({name}) and lacks commits; `quire metadata release-hold` ends this"
    nodes[RESTORATION.encode()] = (0, encode_restoration(restoration))
    nodes[HOLD_PATH.encode()] = (0, reason.encode())
    nodes.setdefault(DISABLE.encode(), (0, b""))
    version, epoch = nodes.get(EPOCH_PATH.encode(), (-1, encode_epoch(EPOCH_NONE)))
    # Bookies may have noted counters and an epoch from commits that are lost.
    nodes[EPOCH_PATH.encode()] = (version + 1, encode_epoch(next_epoch(decode_epoch(epoch), now_ms=now_ms)))
    nodes[layout.LONG_ID_COUNTERS.encode()] = (0, b"")
    nodes[high_path(reserved).encode()] = (0, b"")


def _version(nodes: Nodes, key: str) -> int:
    return nodes.get(key.encode(), (-1, b""))[0]
