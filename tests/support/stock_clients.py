"""Publishers and consumers of the stock Java and Go clients, each a process: the programs of `tests/compat/clients`.

Also runs `pulsar-admin` and `pulsar-perf`. Programs and tools are built once and kept in the user's cache folder. If
that fails, the test is skipped with the reason; with CI=true it fails.
"""

import functools
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.java_driver import JAVA_OPTIONS, ROOT, built
from tests.support.polling import until


@functools.cache
def command(language: str) -> tuple[str, ...]:
    """Return the command of a program, `java` or `go`. Builds it first."""
    if language == "go":
        return (built("stock Go client", "go_client.sh"),)
    return _java("Load")


PULSAR_ADMIN = "org.apache.pulsar.admin.cli.PulsarAdminTool"
PULSAR_PERF = "org.apache.pulsar.testclient.PulsarPerfTestTool"
TOOL_TIMEOUT_S = 240.0


@functools.cache
def _java(program: str) -> tuple[str, ...]:
    return (
        "java",
        "-Xmx256m",
        *JAVA_OPTIONS,
        "-cp",
        _jars("stock Java client", "clients"),
        f"dev.quire.clients.{program}",
    )


@functools.cache
def _jars(what: str, kind: str) -> str:
    return built(what, "fetch.sh", str(ROOT / "tests" / "compat" / "clients" / "java"), kind)


def run_tool(tool: str, configuration: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `PULSAR_ADMIN` or `PULSAR_PERF` with a file of settings, and return how it ended."""
    command = [
        "java",
        "-Xmx768m",
        *JAVA_OPTIONS,
        "-cp",
        _jars("stock tools", "tools"),
        tool,
        str(configuration),
        *words,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)


class Program:
    """One process and the lines that it prints. It ends when `end` closes its input."""

    END_TIMEOUT_S = 120.0

    def __init__(self, log: Path, language: str, *words: str, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: variables beside those of this process."""
        self.lines: list[list[str]] = []
        self.log = log
        self.process = subprocess.Popen(
            [*command(language), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("ab"),
            text=True,
            env=os.environ | (environment or {}),
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


class StockClientError(Exception):
    """An exception of the Java client; `name` is that of its class, such as `NotAllowedException`."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class JavaSession:
    """One Java client that does what it is asked, one request after the other: the program `Session`."""

    ANSWER_TIMEOUT_S = 120.0

    def __init__(self, log: Path, url: str) -> None:
        command, self._log = [*_java("Session"), url], log
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("ab"), text=True, bufsize=1
        )

    def call(self, *words: str) -> list[str]:
        """Return the words of the answer. StockClientError: the client reported an error."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        deadline = threading.Timer(self.ANSWER_TIMEOUT_S, self._process.kill)
        deadline.start()
        try:
            line = self._process.stdout.readline()
        finally:
            deadline.cancel()
        if not line.endswith("\n"):
            pytest.fail(f"no answer to {words}: {self._log.read_text(errors='replace')[-2000:]}")
        kind, *found = line.rstrip("\n").split("\t")
        if kind == "error":
            raise StockClientError(*found)
        return found

    def fails(self, *words: str) -> str:
        """Return the class of the error that a call must end with."""
        with pytest.raises(StockClientError) as caught:
            self.call(*words)
        return caught.value.name

    def publish(self, topic: str, *messages: str, batch: bool = False) -> list[str]:
        """Publish messages `key=value`; return their places `ledger:entry`. An empty value is null."""
        return self.call("publish", topic, "batch" if batch else "single", *messages)

    def read(self, topic: str, *, compacted: bool = False) -> list[str]:
        """Return all messages as `ledger:entry key=value`."""
        return self.call("read", topic, "compacted" if compacted else "whole")

    def subscribe(
        self, topic: str, name: str, kind: str = "Exclusive", *properties: str, compacted: bool = False
    ) -> None:
        """Open a consumer."""
        self.call("subscribe", topic, name, kind, "compacted" if compacted else "whole", *properties)

    def receive(self, topic: str, name: str, count: int, *, wait_ms: int = 60_000) -> list[str]:
        """Return up to `count` messages, and acknowledge them."""
        return self.call("receive", topic, name, str(count), str(wait_ms))

    def table(self, topic: str) -> list[str]:
        """Return `key=value` of a table view, by key."""
        return self.call("table", topic)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
