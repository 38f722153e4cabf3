"""Completion: a script for each shell, and what it completes to."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire_bookie.cli.main import run

FOLDER = Path(sys.executable).parent


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_asks_quire(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_QUIRE_COMPLETE=complete_{shell}" in script


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("quire", "ten"), "tenant"),
        (("quire", "cluster", "dec"), "decommission"),
        (("quire", "topic", "list", "-o", "y"), "yaml"),
    ],
)
def test_bash_completes_commands_and_values(words: tuple[str, ...], expected: str) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    script = (
        f"source <({FOLDER}/quire completion bash); COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        f'_quire_completion {FOLDER}/quire; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run([bash, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [expected], done.stderr
