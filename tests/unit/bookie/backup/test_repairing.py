"""Tests of the ids after a repair, and of when the store comes back under review."""

from quire_bookie.backup.offline_holdings import OfflineHoldings
from quire_bookie.backup.repairing import complete
from quire_bookie.metadata import layout
from quire_bookie.metadata.collection_hold import HOLD_PATH
from quire_bookie.metadata.epoch import EPOCH_PATH, decode_epoch, encode_epoch
from quire_bookie.metadata.local.change_format import Position
from quire_bookie.metadata.local.repair import RepairPlan
from quire_bookie.metadata.restoration import RESTORATION, RestorationState, decode_restoration
from quire_bookie.model import LedgerId

COUNTER = layout.ID_COUNTER.encode()
NAMED = layout.ledger_path(LedgerId(7)).encode()


def plan(*, lost: int = 0, end_proved: bool = True) -> RepairPlan:
    return RepairPlan(
        problem="damaged",
        nodes={COUNTER: (9, b""), NAMED: (0, b"x"), EPOCH_PATH.encode(): (0, encode_epoch(5))},
        last=Position(20, b"", 0),
        highest_seen=20 + lost,
        highest_logged=20 + lost,
        end_proved=end_proved,
    )


def held(*ledgers: int, deleted: int | None = None) -> OfflineHoldings:
    found = OfflineHoldings({LedgerId(one): ["bookie-0"] for one in ledgers})
    if deleted is not None:
        found.deleted.add(LedgerId(deleted))
    return found


def test_complete_store_keeps_its_counter_and_needs_no_review() -> None:
    whole = plan()
    done = complete(whole, held(7, 8), name="r", now_ms=0)
    assert not done.under_review
    assert done.unnamed == (8,)
    assert whole.nodes[COUNTER] == (9, b"")
    assert RESTORATION.encode() not in whole.nodes


def test_counter_ends_above_every_id_that_a_bookie_holds_or_deleted() -> None:
    for holdings in (held(7, 30), held(7, deleted=30)):
        whole = plan()
        assert complete(whole, holdings, name="r", now_ms=0).counter == 30
        assert whole.nodes[COUNTER] == (30, b"")


def test_long_ids_take_a_high_half_unknown_to_bookies() -> None:
    whole = plan()
    complete(whole, held(7, (3 << 32) | 5), name="r", now_ms=0)
    assert f"{layout.LONG_ID_COUNTERS}/HOB-0000000004".encode() in whole.nodes


def test_lost_commits_open_a_review_with_a_later_epoch() -> None:
    lacking = plan(lost=3)
    done = complete(lacking, held(7, 8), name="repair-x", now_ms=1_000_000)
    assert done.under_review
    review = decode_restoration(lacking.nodes[RESTORATION.encode()][1])
    assert (review.backup, review.state) == ("repair-x", RestorationState.REVIEW)
    assert HOLD_PATH.encode() in lacking.nodes
    assert decode_epoch(lacking.nodes[EPOCH_PATH.encode()][1]) == 1000
    assert done.counter >= 1009


def test_newer_ledger_on_a_bookie_opens_a_review_without_a_log() -> None:
    assert not complete(plan(end_proved=False), held(7, 8), name="r", now_ms=0).under_review
    assert complete(plan(end_proved=False), held(7, 10), name="r", now_ms=0).under_review
