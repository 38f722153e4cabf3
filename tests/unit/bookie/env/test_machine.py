"""What a process may use: the limits of its container, else the machine."""

import os
from pathlib import Path

import pytest

from quire_bookie.env.machine import machine_cpus, process_memory_bytes


@pytest.mark.linux
@pytest.mark.parametrize(
    ("limit", "expected"), [("50000 100000", 0.5), ("max 100000", None), ("9000000 100000", None), ("", None)]
)
def test_processors_are_those_of_the_container(tmp_path: Path, limit: str, expected: float | None) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    assert machine_cpus(tmp_path) == (expected or len(os.sched_getaffinity(0)))


@pytest.mark.linux
def test_without_a_control_group_the_machine_counts(tmp_path: Path) -> None:
    assert machine_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_this_process_occupies_memory() -> None:
    assert process_memory_bytes() > 1 << 20
