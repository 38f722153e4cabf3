"""The end of a log that is not on the disk yet."""

import ctypes
import mmap
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from quire_bookie.storage.logs import log_window
from quire_bookie.storage.logs.log_window import PIECE_BYTES, LogWindow, Piece


def test_added_bytes_are_taken_in_pieces_aligned_to_those_of_the_file() -> None:
    window = LogWindow(4096)
    data = bytes(range(256)) * (3 * PIECE_BYTES // 256)
    window.add(data)
    assert window.end_of_pieces == 3 * PIECE_BYTES and window.has_piece
    pieces = window.take(window.end)
    assert [piece.offset for piece in pieces] == [4096, PIECE_BYTES, 2 * PIECE_BYTES, 3 * PIECE_BYTES]
    assert joined(pieces) == data
    assert not window.has_piece and window.pending_bytes == 0


def test_pieces_are_page_aligned_for_direct_writes() -> None:
    window = LogWindow(4096)
    window.add(bytes(5 * PIECE_BYTES))
    for piece in window.take(4 * PIECE_BYTES):
        address = ctypes.addressof(ctypes.c_char.from_buffer(piece.data))
        assert address % mmap.PAGESIZE == 0 == piece.offset % mmap.PAGESIZE == len(piece.data) % mmap.PAGESIZE


def test_reserved_memory_is_filled_by_the_caller() -> None:
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


def test_memory_is_reused_once_its_pieces_are_written_and_bounded_by_those_in_flight() -> None:
    window, waiting, seen = LogWindow(), [], set()
    for _ in range(60):
        window.add(bytes(PIECE_BYTES // 3))
        waiting += window.take(window.end_of_pieces)
        while len(waiting) > 2:
            window.forget(waiting.pop(0))
        seen |= memory_of(window) | {id(piece.block) for piece in waiting}
    assert len(seen) <= 4, "of two pieces, the block being filled, and a spare one"


@given(st.lists(st.one_of(st.binary(max_size=3000), st.integers(0, 100), st.none()), max_size=40), st.data())
def test_the_window_is_a_queue_of_bytes_and_taken_bytes_do_not_change(
    steps: list[bytes | int | None], data: st.DataObject
) -> None:
    with patch.multiple(log_window, PIECE_BYTES=4096, SPARE_BYTES=4096):
        window, taken, added = LogWindow(4096), 0, b""
        in_flight: list[Piece] = []
        for step in steps:
            if isinstance(step, bytes):
                window.add(step)
                added += step
            elif step is None and in_flight:
                window.forget(in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1))))
            elif step is not None:
                for piece in window.take(window.start + window.pending_bytes * step // 100):
                    assert piece.offset == 4096 + taken
                    taken += len(piece.data)
                    in_flight.append(piece)
            assert window.end == 4096 + len(added)
            assert window.pending_bytes == len(added) - taken
            for piece in in_flight:
                assert piece.data == added[piece.offset - 4096 :][: len(piece.data)]
        assert joined(window.take(window.end)) == added[taken:]


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def memory_of(window: LogWindow) -> set[int]:
    """Return the blocks that the window itself references."""
    return {id(block) for block in (window._block, window._spare) if block is not None}
