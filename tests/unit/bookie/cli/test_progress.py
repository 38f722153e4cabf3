"""Progress bars: on a terminal alone, and not for short work."""

import io

import pytest

from quire_bookie.cli import progress as bars
from quire_bookie.cli.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "after_ms", "quiet", "is_shown"),
    [
        (Terminal(), 0, False, True),
        (Terminal(), 1 << 40, False, False),
        (Terminal(), 0, True, False),
        (io.StringIO(), 0, False, False),
    ],
)
def test_a_bar_is_shown_to_people_who_have_waited(
    stream: io.StringIO, after_ms: int, quiet: bool, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(bars, "SHOWN_AFTER_MS", after_ms)
    with progress("sending", 100, quiet=quiet) as advance:
        advance(30)
        advance(70)
    assert ("sending" in stream.getvalue()) is is_shown


def test_the_size_of_a_pipe_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(bars, "SHOWN_AFTER_MS", 0)
    with progress("sending", None) as advance:
        advance(1)
    assert "sending" in stream.getvalue()
