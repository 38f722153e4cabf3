"""Earlier versions of Quire, each in a virtual environment in the user's cache, built once from the history of git.

If one cannot be built, the test is skipped with the reason; with CI=true it fails.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import pytest

from scripts.tools import uv

ROOT = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 600
PREVIOUS: Final = "3af8a789b96661b51d04b16399e8f7593627294b"
"""The version before this one: a commit, as there are no tags yet. A release moves it."""


def require_version(commit: str) -> str:
    """Return the Python interpreter of an environment with the bookie and broker of that commit, or end the test."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire" / "versions"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / f"{commit}-{sys.version_info.major}.{sys.version_info.minor}"
    try:
        with (cache / "LOCK").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (place / "ready").exists():
                shutil.rmtree(place, ignore_errors=True)
                _build(commit, place)
                (place / "ready").touch()
    except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no version {commit}: {error}")
        pytest.skip(f"no version {commit}: {error}")
    return str(place / "bin" / "python")


def _build(commit: str, place: Path) -> None:
    with tempfile.TemporaryDirectory(dir=place.parent) as work:
        archive = Path(work) / "source.tar"
        _run("git", "-C", str(ROOT), "archive", "--output", str(archive), commit, "bookie", "broker", "images")
        with tarfile.open(archive) as files:
            files.extractall(work, filter="data")
        _run(uv(), "venv", "--quiet", "--python", sys.executable, str(place))
        constraints = ("--constraints", f"{work}/images/constraints.txt")
        python = ("--python", str(place / "bin" / "python"))
        _run(
            uv(), "pip", "install", "--quiet", "--no-sources", *python, *constraints, f"{work}/bookie", f"{work}/broker"
        )


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise subprocess.SubprocessError(f"{' '.join(command[:3])}: {lines[-1]}")
