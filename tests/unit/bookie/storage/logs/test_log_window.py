"""The end of a log that is not on the disk yet."""

import ctypes
import mmap
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.storage.logs import log_window
from quire_bookie.storage.logs.log_window import PIECE_BYTES, LogWindow, Piece


def test_what_was_added_is_handed_on_in_pieces_that_meet_where_those_of_the_file_do() -> None:
    window = LogWindow(4096)
    data = bytes(range(256)) * (3 * PIECE_BYTES // 256)
    window.add(data)
    assert window.end_of_pieces == 3 * PIECE_BYTES and window.has_piece
    pieces = window.take(window.end)
    assert [piece.offset for piece in pieces] == [4096, PIECE_BYTES, 2 * PIECE_BYTES, 3 * PIECE_BYTES]
    assert joined(pieces) == data
    assert not window.has_piece and window.pending_bytes == 0


def test_pieces_lie_on_pages_of_memory_so_that_the_disk_may_take_them_as_they_are() -> None:
    window = LogWindow(4096)
    window.add(bytes(5 * PIECE_BYTES))
    for piece in window.take(4 * PIECE_BYTES):
        address = ctypes.addressof(ctypes.c_char.from_buffer(piece.data))
        assert address % mmap.PAGESIZE == 0 == piece.offset % mmap.PAGESIZE == len(piece.data) % mmap.PAGESIZE


def test_reserved_room_is_filled_by_the_caller() -> None:
    window = LogWindow()
    window.add(b"before ")
    memory, at = window.reserve(6)
    memory[at : at + 6] = b"inside"
    window.add(b" after")
    assert joined(window.take(window.end)) == b"before inside after"


def test_an_empty_window_holds_no_memory_and_has_no_pieces() -> None:
    window = LogWindow(8192)
    assert window.take(8192) == []
    window.add(b"something")
    (piece,) = window.take(window.end)
    window.forget(piece)
    assert (window.start, window.end, window.pending_bytes) == (8201, 8201, 0)
    assert memory_of(window) == set()
    assert window.take(window.end) == []
    window.add(b"more")
    assert [(piece.offset, bytes(piece.data)) for piece in window.take(window.end)] == [(8201, b"more")]


def test_memory_is_used_again_once_its_pieces_are_written_and_is_bounded_by_those_under_way() -> None:
    window, waiting, seen = LogWindow(), [], set()
    for _ in range(60):
        window.add(bytes(PIECE_BYTES // 3))
        waiting += window.take(window.end_of_pieces)
        while len(waiting) > 2:
            window.forget(waiting.pop(0))
        seen |= memory_of(window) | {id(piece.block) for piece in waiting}
    assert len(seen) <= 4, "of two pieces, of the one that is filled, and a spare one"


@given(st.lists(st.one_of(st.binary(max_size=3000), st.integers(0, 100), st.none()), max_size=40), st.data())
def test_it_is_a_queue_of_bytes_and_what_was_taken_stays_as_it_was(
    steps: list[bytes | int | None], data: st.DataObject
) -> None:
    with patch.multiple(log_window, PIECE_BYTES=4096, SPARE_BYTES=4096):
        window, taken, added = LogWindow(4096), 0, b""
        under_way: list[Piece] = []
        for step in steps:
            if isinstance(step, bytes):
                window.add(step)
                added += step
            elif step is None and under_way:
                window.forget(under_way.pop(data.draw(st.integers(0, len(under_way) - 1))))
            elif step is not None:
                for piece in window.take(window.start + window.pending_bytes * step // 100):
                    assert piece.offset == 4096 + taken
                    taken += len(piece.data)
                    under_way.append(piece)
            assert window.end == 4096 + len(added)
            assert window.pending_bytes == len(added) - taken
            for piece in under_way:
                assert piece.data == added[piece.offset - 4096 :][: len(piece.data)]
        assert joined(window.take(window.end)) == added[taken:]


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def memory_of(window: LogWindow) -> set[int]:
    """What the window itself holds."""
    return {id(block) for block in (window._block, window._spare) if block is not None}
