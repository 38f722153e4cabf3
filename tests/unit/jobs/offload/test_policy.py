from quire_bookie.model import LedgerId
from quire_jobs.offload.policy import Left, ListedLedger, OffloadPolicy, choose

NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000


def listed(*sizes: int) -> list[ListedLedger]:
    """Return ledgers 10, 11, ..., each closed an hour after the previous one; the last is still open."""
    last = len(sizes) - 1
    return [
        ListedLedger(
            LedgerId(10 + k), 5 if size else 0, size, closed_ms=0 if k == last else NOW_MS - (last - k) * HOUR_MS
        )
        for k, size in enumerate(sizes)
    ]


def ids(ledgers: tuple[ListedLedger, ...]) -> list[int]:
    return [ledger.ledger_id for ledger in ledgers]


def test_without_a_rule_all_closed_ledgers_are_taken_oldest_first() -> None:
    choice = choose(listed(100, 100, 0, 100), OffloadPolicy(), NOW_MS)
    assert ids(choice.chosen) == [10, 11]
    assert choice.left == ((LedgerId(12), Left.EMPTY), (LedgerId(13), Left.OPEN))


def test_a_ledger_is_taken_at_the_configured_age_to_the_millisecond() -> None:
    assert ids(choose(listed(1, 1, 1), OffloadPolicy(age_s=7200), NOW_MS).chosen) == [10]
    assert ids(choose(listed(1, 1, 1), OffloadPolicy(age_s=7200.001), NOW_MS).chosen) == []


def test_the_kept_size_counts_newer_and_offloaded_ledgers() -> None:
    ledgers = listed(100, 100, 100, 50)
    assert ids(choose(ledgers, OffloadPolicy(keep_bytes=150), NOW_MS).chosen) == [10, 11]
    assert ids(choose(ledgers, OffloadPolicy(keep_bytes=149), NOW_MS).chosen) == [10, 11, 12]
    ledgers[1] = ListedLedger(LedgerId(11), 5, 100, closed_ms=1, offloaded=True)
    choice = choose(ledgers, OffloadPolicy(keep_bytes=300), NOW_MS)
    assert ids(choice.chosen) == [10]
    assert (LedgerId(11), Left.OFFLOADED) in choice.left


def test_either_rule_suffices() -> None:
    policy = OffloadPolicy(age_s=10 * 3600, keep_bytes=120)
    assert ids(choose(listed(100, 100, 100), policy, NOW_MS).chosen) == [10, 11]


def test_small_ledgers_are_skipped_unless_named() -> None:
    assert ids(choose(listed(10, 100, 5), OffloadPolicy(ledger_bytes_min=50), NOW_MS).chosen) == [11]
    named = OffloadPolicy(age_s=1e9, ledger_bytes_min=50, ids=frozenset({LedgerId(10)}))
    choice = choose(listed(10, 100, 5), named, NOW_MS)
    assert ids(choice.chosen) == [10]
    assert (LedgerId(11), Left.NOT_NAMED) in choice.left


def test_the_newest_ledger_is_never_taken() -> None:
    ledgers = [ListedLedger(LedgerId(10), 5, 100, closed_ms=1)]
    assert choose(ledgers, OffloadPolicy(ids=frozenset({LedgerId(10)})), NOW_MS).left == ((LedgerId(10), Left.OPEN),)
    assert choose([], OffloadPolicy(), NOW_MS).chosen == ()
