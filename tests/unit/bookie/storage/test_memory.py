"""The memory of a storage is bounded by the configured bytes, with real RocksDB and files, and small entries."""

import subprocess
import sys
from pathlib import Path

import pytest

GROWTH_MAX = 1.3
ENTRIES = 600_000  # of 100 bytes: twice the size of the write cache
ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads resident memory from /proc")
def test_resident_memory_grows_by_at_most_the_configured_bytes_and_30_percent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.bookie.storage.memory_probe", str(tmp_path), str(ENTRIES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    idle, peak, configured = map(int, done.stdout.split())
    growth = (peak - idle) / configured
    assert growth <= GROWTH_MAX, f"grew by {growth:.2f} times the {configured} bytes configured"
    assert growth > 0.5, "the load must fill the caches, otherwise this test proves nothing"
