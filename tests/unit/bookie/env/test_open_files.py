"""The limit of open files of a process, and the share of connections."""

import subprocess
import sys

import pytest

from quire_bookie.env.open_files import Shares, at_most


@pytest.mark.parametrize(
    ("files_max", "clients", "http"),
    [(2, 1, 1), (256, 96, 32), (1024, 384, 128), (4096, 2560, 512), (1 << 20, 5 << 17, 1 << 17)],
)
def test_connections_leave_handles_to_files(files_max: int, clients: int, http: int) -> None:
    assert Shares.of(files_max) == Shares(clients, http)


@pytest.mark.parametrize(("configured", "taken"), [(0, 384), (100, 100), (20_000, 384)])
def test_a_limit_of_connections_is_within_its_share(configured: int, taken: int) -> None:
    assert at_most(configured, 384) == taken


def test_a_process_raises_its_limit_to_what_the_system_allows() -> None:
    code = "from quire_bookie.env import open_files as o; print(o.raise_open_files(), o.open_files_max())"
    command = ["sh", "-c", 'ulimit -Sn 100; ulimit -Hn 500; exec "$@"', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == ["500", "500"]
