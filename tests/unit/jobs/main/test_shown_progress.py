import io

from rich.console import Console

from quire_jobs.main.shown_progress import BarProgress, LineProgress, progress_on


def test_a_log_gets_a_line_at_the_start_at_the_end_and_per_interval() -> None:
    stream, times = io.StringIO(), iter([0.0, 1.0, 11.0, 11.0, 12.0, 12.0])
    with LineProgress(stream, lambda: next(times)) as progress:
        progress.begin("copy", 30, "bytes")
        progress.advance(10)
        progress.advance(10)
        progress.advance(10)
        progress.note("done")
    assert stream.getvalue().splitlines() == [
        "copy: 0 of 30 bytes",
        "copy: 20 of 30 bytes",
        "copy: 30 of 30 bytes",
        "done",
    ]


def test_a_stage_of_unknown_length_has_no_total() -> None:
    stream = io.StringIO()
    LineProgress(stream).begin("list", None, "topics")
    assert stream.getvalue() == "list: 0 topics\n"


def test_a_terminal_gets_a_bar_and_notes_stay_above_it() -> None:
    stream = io.StringIO()
    with BarProgress(Console(file=stream, force_terminal=True, width=100)) as progress:
        progress.begin("copy", 2_000_000, "bytes")
        progress.advance(2_000_000)
        progress.note("[7] is not markup")
        progress.begin("sweep", 3, "objects")
        progress.advance(3)
    said = stream.getvalue()
    assert "copy" in said and "2.0/2.0 MB" in said and "[7] is not markup" in said
    assert "3/3" in said and "objects" in said


def test_other_streams_than_terminals_get_lines() -> None:
    assert isinstance(progress_on(io.StringIO()), LineProgress)
