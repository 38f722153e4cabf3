"""Ports for the servers of tests: free, never the same twice in a row, and those of another process are others."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.support import ports

ROOT = Path(__file__).resolve().parents[2]


def test_no_port_comes_twice_in_a_row() -> None:
    taken = [ports.free_port(), *ports.free_ports(5), ports.free_port_range(3)]
    assert len({*taken, taken[-1] + 1, taken[-1] + 2, ports.free_port()}) == 10


def test_a_port_that_is_listened_on_is_passed_over() -> None:
    first = ports.free_port()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", first + 1))
        listening.listen()
        assert ports.free_port_range(2) > first + 1


def test_another_process_takes_others() -> None:
    program = "from tests.support import ports; print(*ports.free_ports(3))"
    found = [
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert found[0] != found[1]
