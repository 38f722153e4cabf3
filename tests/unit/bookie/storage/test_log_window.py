"""The end of a log that is not on the disk yet."""

import ctypes
import mmap

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.storage.log_window import PIECE_BYTES, LogWindow


def test_what_was_added_is_handed_on_in_pieces_that_meet_where_those_of_the_file_do() -> None:
    window = LogWindow(4096)
    data = bytes(range(256)) * (3 * PIECE_BYTES // 256)
    window.add(data)
    pieces = window.pieces(window.end)
    assert [offset for offset, _piece in pieces] == [4096, PIECE_BYTES, 2 * PIECE_BYTES, 3 * PIECE_BYTES]
    assert b"".join(piece for _offset, piece in pieces) == data


def test_pieces_lie_on_pages_of_memory_so_that_the_disk_may_take_them_as_they_are() -> None:
    window = LogWindow(4096)
    window.add(bytes(5 * PIECE_BYTES))
    for offset, piece in window.pieces(4 * PIECE_BYTES):
        address = ctypes.addressof(ctypes.c_char.from_buffer(piece))
        assert address % mmap.PAGESIZE == 0 == offset % mmap.PAGESIZE == len(piece) % mmap.PAGESIZE


def test_reserved_room_is_filled_by_the_caller() -> None:
    window = LogWindow()
    window.add(b"before ")
    memory, at = window.reserve(6)
    memory[at : at + 6] = b"inside"
    window.add(b" after")
    assert b"".join(piece for _offset, piece in window.pieces(window.end)) == b"before inside after"


def test_an_empty_window_holds_no_memory_and_has_no_pieces() -> None:
    window = LogWindow(8192)
    assert window.pieces(8192) == []
    window.add(b"something")
    window.forget(window.end)
    assert (window.start, window.end, window.pending_bytes) == (8201, 8201, 0)
    assert window.pieces(window.end) == []
    window.add(b"more")
    assert [(offset, bytes(piece)) for offset, piece in window.pieces(window.end)] == [(8201, b"more")]


@given(st.lists(st.one_of(st.binary(max_size=3000), st.integers(0, 100)), max_size=30))
def test_it_is_a_queue_of_bytes(steps: list[bytes | int]) -> None:
    window, written, added = LogWindow(4096), b"", b""
    for step in steps:
        if isinstance(step, bytes):
            window.add(step)
            added += step
        else:
            end = window.start + window.pending_bytes * step // 100
            for offset, piece in window.pieces(end):
                assert offset == 4096 + len(written)
                written += piece
            window.forget(end)
        assert window.end == 4096 + len(added)
        assert window.pending_bytes == len(added) - len(written)
    assert written + b"".join(piece for _offset, piece in window.pieces(window.end)) == added
