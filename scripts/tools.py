"""Finds the tools of development."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def uv() -> str:
    """Return the path of uv: that of the machine, or the one that `make env` installs."""
    return shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
