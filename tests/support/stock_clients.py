"""Publishers and consumers of the stock Java and Go clients, each a process: the programs of `tests/compat/clients`.

The programs are built once and kept in the user's cache folder. If that fails, the test is skipped with the reason;
with CI=true it fails.
"""

import functools
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.java_driver import JAVA_OPTIONS, ROOT, built
from tests.support.polling import until


@functools.cache
def command(language: str) -> tuple[str, ...]:
    """Return the command of a program, `java` or `go`. Builds it first."""
    if language == "go":
        return (built("stock Go client", "go_client.sh"),)
    jars = built("stock Java client", "fetch.sh", str(ROOT / "tests" / "compat" / "clients" / "java"), "clients")
    return ("java", "-Xmx256m", *JAVA_OPTIONS, "-cp", jars, "dev.quire.clients.Load")


class Program:
    """One process and the lines that it prints. It ends when `end` closes its input."""

    END_TIMEOUT_S = 120.0

    def __init__(self, log: Path, language: str, *words: str) -> None:
        self.lines: list[list[str]] = []
        self.log = log
        self.process = subprocess.Popen(
            [*command(language), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split(maxsplit=3)
            if words:
                self.lines.append(words)
                self.note(words)

    def note(self, words: list[str]) -> None:
        """Note one line; called in another thread."""

    def of(self, kind: str) -> list[list[str]]:
        """The lines of a kind, without it."""
        return [words[1:] for words in self.lines if words[0] == kind]

    def wait_for_line(self, kind: str) -> None:
        """Wait for the first line of a kind."""
        until(lambda: bool(self.of(kind)), lambda: f"no {kind}: {self.why()}", timeout_s=self.END_TIMEOUT_S)

    def why(self) -> str:
        """Return the latest errors."""
        return f"{self.of('E')[-3:]} {self.log.read_text(errors='replace')[-2000:]}"

    def end(self) -> None:
        """Close the input, and wait until the process has ended its work."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            assert self.process.wait(self.END_TIMEOUT_S) == 0, self.why()
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end: {self.why()}")
        finally:
            self.process.kill()
        self._reading.join()

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self.process.kill()
        self.process.wait()


class StockPublisher(Program):
    """Publishes 0, 1, 2 ... to each topic; the key of `n` is `k{n % keys}`."""

    def __init__(self, log: Path, language: str, url: str, topics: list[str], *, pause_ms: int, keys: int) -> None:
        self.topics = topics
        self.acknowledged: list[set[int]] = [set() for _ in topics]
        super().__init__(log, language, "publish", url, str(pause_ms), str(keys), *topics)

    def note(self, words: list[str]) -> None:
        """Note an acknowledgement."""
        if words[0] == "A":
            self.acknowledged[int(words[1])].add(int(words[2]))

    def resume(self) -> None:
        """Wait until 20 more messages of each topic are acknowledged."""
        before = [len(found) for found in self.acknowledged]

        def later() -> bool:
            return all(len(found) >= known + 20 for found, known in zip(self.acknowledged, before, strict=True))

        until(later, lambda: f"not published to all topics: {self.why()}", timeout_s=self.END_TIMEOUT_S)

    def finish(self) -> int:
        """Wait until everything is acknowledged, and return the number of messages of each topic."""
        self.end()
        assert not self.of("E"), self.why()
        sent = int(self.of("S")[0][0])
        assert all(found == set(range(sent)) for found in self.acknowledged)
        return sent


class StockConsumer(Program):
    """Consumes a topic by a Key_Shared subscription."""

    def __init__(self, log: Path, language: str, url: str, subscription: str, topic: str) -> None:
        super().__init__(log, language, "consume", url, subscription, topic)

    @property
    def received(self) -> list[tuple[int, str, int]]:
        """Time in ns, key and number of each message."""
        return [(int(at), key, int(number)) for at, key, number in self.of("M")]
