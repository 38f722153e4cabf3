"""Completion of names of topics where no broker answers: nothing, without an error, in bounded time."""

import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.ports import free_port
from tests.support.standalone import QUIRE, environment


@pytest.fixture
def mute() -> Iterator[int]:
    """The port of a server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def completions(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Ask as the script for bash does."""
    asked = {"_QUIRE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    known = environment() | asked | variables
    return subprocess.run([QUIRE], capture_output=True, text=True, timeout=60, env=known)


def test_nothing_is_completed_where_nothing_answers(mute: int) -> None:
    for port in (free_port(), mute):
        done = completions("quire topic describe or", QUIRE_HTTP=f"http://127.0.0.1:{port}")
        assert (done.stdout.strip(), done.stderr) == ("", "")


def test_a_wrong_address_profile_or_name_prints_no_error() -> None:
    for line in (
        "quire topic describe --http nonsense or",
        "quire --profile missing topic describe or",
        "quire topic describe a/b/c/d",
        "quire topic describe //",
    ):
        done = completions(line, QUIRE_HTTP=f"http://127.0.0.1:{free_port()}")
        assert (done.stdout.strip(), done.stderr) == ("", ""), line
