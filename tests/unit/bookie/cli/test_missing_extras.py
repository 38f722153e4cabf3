"""A command that needs a library of an extra, where only the base is installed: one line that says what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "import sys; sys.modules[{missing!r}] = None; from quire_bookie.cli.main import run; sys.exit(run(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("library", "words", "remedy"),
    [
        ("grpc", ("metadata", "cookies", "list", "--metadata", "etcd://127.0.0.1:1"), "pip install 'quire[etcd]'"),
        ("obstore", ("metadata", "verify", "--from", "s3://backups/quire"), "pip install 'quire[s3]'"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    library: str, words: tuple[str, ...], remedy: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", MAIN.format(missing=library), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert remedy in " ".join(done.stderr.split()), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
