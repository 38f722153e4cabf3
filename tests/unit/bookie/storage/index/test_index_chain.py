"""Links of commits: any gap is detected, and the window advances."""

import pytest

from quire_bookie.storage.index.index_chain import LINKS_KEPT_MIN, LINKS_PER_TABLE, CommitChain


def _after(writes: int, links: dict[bytes, bytes] | None = None) -> tuple[CommitChain, dict[bytes, bytes], int]:
    """Return a chain after this number of writes, its links, and how often tables were due."""
    chain, stored, tables = CommitChain(), {} if links is None else links, 0
    for _ in range(writes):
        tables += chain.table_is_due()
        puts, deletes = chain.next_write()
        stored.update(puts)
        for key in deletes:
            del stored[key]
        chain.written()
    return chain, stored, tables


@pytest.mark.parametrize("writes", [0, 1, 5, LINKS_KEPT_MIN, 3 * LINKS_KEPT_MIN + 7])
def test_intact_links_form_a_chain_that_continues(writes: int) -> None:
    _, stored, tables = _after(writes)
    assert len(stored) <= LINKS_KEPT_MIN + LINKS_PER_TABLE + 1
    assert tables == max(0, writes - 1) // LINKS_PER_TABLE
    again = CommitChain.of(sorted(stored.items()))
    ((key, _),), _ = again.next_write()
    assert int.from_bytes(key[6:], "big") == writes + 1


@pytest.mark.parametrize("lost", [(1, 2), (1, 500), (700, 900), (1100, 1101), (1400, 1499)])
def test_any_lost_run_of_writes_before_the_last_is_detected(lost: tuple[int, int]) -> None:
    _, stored, _ = _after(1500)
    left = [(key, value) for key, value in sorted(stored.items()) if not lost[0] <= int.from_bytes(key[6:]) < lost[1]]
    with pytest.raises(ValueError, match=f"write {lost[0]} is absent"):
        CommitChain.of(left)


def test_a_gap_before_the_oldest_possible_log_is_detected_after_the_window_moved() -> None:
    """Of the writes since the older manifest only those in the logs of two table intervals are left."""
    _, stored, _ = _after(20_000)
    numbers = [int.from_bytes(key[6:]) for key in stored]
    logs_hold = 2 * LINKS_PER_TABLE
    left = [pair for pair in sorted(stored.items()) if int.from_bytes(pair[0][6:]) > 20_000 - logs_hold]
    assert min(numbers) <= 20_000 - logs_hold
    with pytest.raises(ValueError, match="commits are missing"):
        CommitChain.of(left)


def test_links_of_an_older_state_that_were_deleted_since_are_ignored() -> None:
    """An older manifest restores them beside those of the logs."""
    _, old, _ = _after(3000)
    _, stored, _ = _after(20_000)
    with pytest.raises(ValueError, match="commits are missing"):
        CommitChain.of(sorted((old | dict(sorted(stored.items())[-2000:])).items()))


def test_a_cleared_chain_starts_with_the_next_write() -> None:
    chain, _, _ = _after(50)
    chain.cleared()
    puts, deletes = chain.next_write()
    assert not deletes
    CommitChain.of(puts)
