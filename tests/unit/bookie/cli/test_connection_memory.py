"""The memory budget of connections by configuration, and by the memory of the machine or container."""

from pathlib import Path

import pytest

from quire_bookie.cli.connection_memory import memory_settings
from quire_bookie.config.connections import ConnectionMemoryConfig
from quire_bookie.env.machine import machine_memory_bytes
from quire_bookie.limits import CONNECTION_MEMORY_FRAMES_MIN, FRAME_BYTES_MAX, MIB

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("machine_bytes", "budget_bytes"),
    [(64 * GIB, 512 * MIB), (1 * GIB, 256 * MIB), (64 * MIB, CONNECTION_MEMORY_FRAMES_MIN * FRAME_BYTES_MAX)],
)
def test_by_default_it_is_a_quarter_of_the_memory_within_bounds(machine_bytes: int, budget_bytes: int) -> None:
    assert memory_settings(ConnectionMemoryConfig.model_validate({}), machine_bytes).bytes_max == budget_bytes


def test_a_configured_budget_is_used_and_a_too_large_one_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    config = ConnectionMemoryConfig.model_validate({"connectionMemoryMaxMb": 2048, "stalledPeerTimeoutSeconds": 5})
    assert memory_settings(config, 4 * GIB).bytes_max == 2 * GIB
    assert not caplog.records
    assert memory_settings(config, 1 * GIB).stalled_s == 5
    assert "connectionMemoryMaxMb 2048 is more than the memory" in caplog.text


def test_the_limit_of_a_container_is_used(tmp_path: Path) -> None:
    machine = machine_memory_bytes(tmp_path)
    assert machine > 0
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_memory_bytes(tmp_path) == machine
    (tmp_path / "memory.max").write_text("1048576\n")
    assert machine_memory_bytes(tmp_path) == 1048576
