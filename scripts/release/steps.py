"""Runs the commands of a release."""

import os
import subprocess
from pathlib import Path

from scripts.release.versions import ReleaseError

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str | Path, **environment: str) -> None:
    """Run a command in the root of the project. ReleaseError with its errors if it fails."""
    output_of(*words, **environment)


def output_of(*words: str | Path, **environment: str) -> str:
    """Return what a command prints. ReleaseError with its errors if it fails."""
    named = list(map(str, words))
    done = subprocess.run(named, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(named[:4])} failed:\n{(done.stderr or done.stdout)[-4000:]}")
    return done.stdout
