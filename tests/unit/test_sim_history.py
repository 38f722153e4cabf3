"""The judge must be able to say no."""

import pytest

from tests.sim.history import CursorHistory, HistoryError, LedgerHistory, LogHistory


def written(count: int, confirmed: int) -> LedgerHistory:
    history = LedgerHistory()
    history.on_submit(0, [b"%d" % index for index in range(count)])
    if confirmed >= 0:
        history.on_confirm(confirmed)
    return history


def test_a_faithful_ledger_passes() -> None:
    history = written(5, 3)
    history.on_close(4)
    history.on_close(4)
    history.on_read("reader", 1, [b"1", b"2"])
    history.check()


@pytest.mark.parametrize(("last", "why"), [(2, "entries are lost"), (5, "entries are invented")])
def test_an_end_below_what_was_confirmed_or_above_what_was_sent_is_refused(last: int, why: str) -> None:
    history = written(5, 3)
    history.on_close(last)
    with pytest.raises(HistoryError, match=why):
        history.check()


def test_two_ends_are_refused() -> None:
    history = written(5, 3)
    history.on_close(3)
    history.on_close(4)
    with pytest.raises(HistoryError, match="different entries"):
        history.check()


def test_other_content_is_refused() -> None:
    history = written(5, 3)
    history.on_read("reader", 1, [b"2"])
    with pytest.raises(HistoryError, match="never submitted there"):
        history.check()


def test_confirmations_go_forward_and_end_with_the_writer() -> None:
    history = written(5, 3)
    with pytest.raises(HistoryError, match="confirmed 3 after 3"):
        history.on_confirm(3)
    history.failed = True
    with pytest.raises(HistoryError, match="after the writer had failed"):
        history.on_confirm(4)


def log() -> LogHistory:
    history = LogHistory()
    for payload in (b"a", b"b", b"c"):
        history.on_append(payload)
    history.on_appended(b"a", (1, 0))
    history.on_appended(b"c", (1, 2))
    return history


def test_a_faithful_log_passes_and_may_hold_what_was_not_acknowledged() -> None:
    log().check_log([((1, 0), b"a"), ((1, 1), b"b"), ((1, 2), b"c")])
    log().check_log([((1, 0), b"a"), ((1, 2), b"c")])


@pytest.mark.parametrize(
    "found",
    [
        [((1, 0), b"a")],
        [((1, 0), b"a"), ((1, 3), b"c")],
        [((1, 0), b"a"), ((1, 1), b"x"), ((1, 2), b"c")],
        [((1, 0), b"a"), ((1, 1), b"a"), ((1, 2), b"c")],
        [((1, 0), b"a"), ((1, 2), b"c"), ((1, 3), b"b")],
        [((1, 2), b"c"), ((1, 0), b"a")],
    ],
)
def test_a_log_with_losses_inventions_repeats_or_another_order_is_refused(
    found: list[tuple[tuple[int, int], bytes]],
) -> None:
    with pytest.raises(HistoryError):
        log().check_log(found)


def cursor() -> LogHistory:
    history = log()
    history.on_seen(b"b", (1, 1))
    history.cursors["sub"] = CursorHistory((1, 0), {b"a", b"b"}, {b"a"})
    return history


def test_a_cursor_may_repeat_but_neither_skip_nor_resurrect() -> None:
    history = cursor()
    history.check_cursor("sub", {b"b", b"c"})
    history.check_cursor("sub", {b"c"})
    with pytest.raises(HistoryError, match="is not delivered"):
        history.check_cursor("sub", {b"b"})
    with pytest.raises(HistoryError, match="delivered again"):
        history.check_cursor("sub", {b"a", b"c"})


def test_a_cursor_owes_nothing_from_before_it_was_made() -> None:
    history = cursor()
    history.cursors["late"] = CursorHistory((1, 2))
    history.check_cursor("late", {b"c"})


def test_a_seek_brings_back_what_is_there_and_skips_what_is_before() -> None:
    history = cursor()
    history.on_seek("sub", (1, 1))
    history.check_cursor("sub", {b"c"})
    history.check_cursor("sub", {b"b", b"c"})
    history.on_sought("sub", (1, 1), (1, 0))
    history.check_cursor("sub", {b"b", b"c"})
    with pytest.raises(HistoryError, match="b'b' was never consumed by sub"):
        history.check_cursor("sub", {b"c"})


def test_only_where_ledgers_are_trimmed_the_head_may_be_missing() -> None:
    rest = [((1, 1), b"b"), ((1, 2), b"c")]
    with pytest.raises(HistoryError):
        log().check_log(rest)
    trimmed = log()
    trimmed.trims = True
    trimmed.check_log(rest)
    with pytest.raises(HistoryError):
        trimmed.check_log([((1, 1), b"b")])
