"""The code blocks of a Markdown page, and a shell that runs them in order in one folder.

A block without a language, of `sh` or of `python` is run; the next block of `text` under the same heading is what
it prints, where `...` stands for anything. HTML comments, which readers do not see, on a line of their own say what
differs:

    <!-- first: COMMAND -->      runs before the next block: what the reader has and the test has not
    <!-- background: TEXT -->    the next block goes on until `stop`; the test waits until it prints the text
    <!-- stop -->                Ctrl-C in every terminal
    <!-- not run: REASON -->     the next block is left out
"""

import contextlib
import doctest
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.polling import until

_PART = re.compile(
    r"^<!-- (?P<name>first|background|stop|not run)(?:: (?P<value>[^\n]*?))? -->$"
    r"|^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_RUN = ("", "sh", "python")
_STATE = "export -p > {state}; printf 'cd %q\\n' \"$PWD\" >> {state}"
START_TIMEOUT_S = 180.0


@dataclass(slots=True)
class Block:
    """A code block with what the comments in front of it and the output behind it say of it."""

    line: int
    code: str
    is_python: bool = False
    first: list[str] = field(default_factory=list)
    background: str | None = None
    reason: str | None = None
    """Why it is not run."""
    output: str | None = None
    stops: bool = False
    """Not a block of code: ends what runs in the background."""


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page in order. ValueError for a comment without its value or its block."""
    found: list[Block] = []
    coming = Block(0, "")
    ended_at = -1
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        name, value = part["name"], part["value"]
        if name == "stop":
            found.append(Block(line, "", stops=True))
        elif name:
            if not value:
                raise ValueError(f"line {line}: the comment `{name}` says nothing after its colon")
            coming = _noted(coming, name, value)
        elif part["language"] in _RUN:
            coming.line, coming.code, coming.is_python = line, part["code"], part["language"] == "python"
            found.append(coming)
            coming, ended_at = Block(0, ""), part.end()
        elif part["language"] == "text" and found and "\n#" not in text[ended_at : part.start()]:
            found[-1].output = part["code"]
    if coming != Block(0, ""):
        raise ValueError("the last comment has no block behind it")
    return found


def _noted(block: Block, name: str, value: str) -> Block:
    match name:
        case "first":
            block.first.append(value)
        case "background":
            block.background = value
        case _:
            block.reason = value
    return block


class PageShell:
    """Runs the blocks of one page in a folder; exported variables and the folder go from block to block."""

    def __init__(self, folder: Path, variables: dict[str, str], replaced: dict[str, str]) -> None:
        """`replaced`: texts of the page, such as addresses, and what the test has in their place."""
        self.folder = folder
        self._variables = variables
        self._replaced = replaced
        self._state = folder.parent / f"{folder.name}.state"
        self._state.write_text("")
        self._running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def run(self, blocks: list[Block]) -> Iterator[Block]:
        """Run each block, and yield it; AssertionError with its line and what it printed if it fails."""
        for block in blocks:
            if block.stops:
                self.stop()
            elif block.reason is None:
                for command in block.first:
                    self._foreground(block, command)
                if block.background is None:
                    self._check(block, self._foreground(block, block.code, is_python=block.is_python))
                else:
                    self._start(block, block.background)
            yield block

    def stop(self) -> None:
        """Press Ctrl-C where something runs, and wait for its end."""
        while self._running:
            process, log = self._running.pop()
            os.killpg(process.pid, signal.SIGINT)
            until(lambda: process.poll() is not None, lambda: f"Ctrl-C does not end it:\n{log.read_text()}")  # noqa: B023  called at once

    def close(self) -> None:
        """End what still runs."""
        for process, _ in self._running:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()

    def _foreground(self, block: Block, code: str, *, is_python: bool = False) -> str:
        done = subprocess.run(
            self._command(code, is_python=is_python),
            cwd=self.folder,
            env=self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, f"line {block.line} ended with {done.returncode}:\n{code}\n{done.stdout}"
        return done.stdout

    def _start(self, block: Block, awaited: str) -> None:
        log = self.folder.parent / f"{self.folder.name}.{block.line}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command(block.code),
                cwd=self.folder,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._running.append((process, log))
        until(
            lambda: awaited in log.read_text(errors="replace"),
            lambda: f"line {block.line} does not print {awaited!r}:\n{log.read_text(errors='replace')}",
            timeout_s=START_TIMEOUT_S,
            process=process,
        )

    def _check(self, block: Block, printed: str) -> None:
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        if block.output is not None and not doctest.OutputChecker().check_output(block.output, printed, flags):
            raise AssertionError(f"line {block.line} prints other than the page says:\n{block.output}\n{printed}")

    def _command(self, code: str, *, is_python: bool = False) -> list[str]:
        for text, other in self._replaced.items():
            code = code.replace(text, other)
        if is_python:
            return ["bash", "-c", f'. {self._state}; exec python -c "$1"', "bash", code]
        return ["bash", "-c", f"set -eo pipefail; . {self._state}\n{code}\n{_STATE.format(state=self._state)}"]
