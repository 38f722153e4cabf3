"""The stock Java BookKeeper client in a separate JVM: `tests/compat/java` defines its commands.

`scripts/compat/fetch.sh` fetches the jars and compiles the driver; both are kept in the user's cache folder. If that
fails, the test is skipped with the reason; with CI=true it fails.
"""

import functools
import hashlib
import itertools
import json
import os
import subprocess
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts" / "compat"
SOURCES = ROOT / "tests" / "compat" / "java"
FETCH_TIMEOUT_S = 900
ANSWER_TIMEOUT_S = 90
_DRIVER = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata{}Driver"
_OPEN = ["java.base/java.io", "java.base/java.lang", "java.base/java.nio", "java.base/java.util.zip"]
_OPEN += ["java.base/jdk.internal.misc", "java.base/jdk.internal.platform", "java.base/sun.net"]
JAVA_OPTIONS = [
    *(word for package in _OPEN for word in ("--add-opens", f"{package}=ALL-UNNAMED")),
    "-Dio.netty.tryReflectionSetAccessible=true",
    f"-Dbookkeeper.metadata.client.drivers={_DRIVER.format('Client')}",
    f"-Dbookkeeper.metadata.bookie.drivers={_DRIVER.format('Bookie')}",
    f"-Dlog4j.configurationFile={SCRIPTS / 'log4j2.xml'}",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
]


def built(what: str, script: str, *arguments: str, fatal: tuple[int, ...] = (5,)) -> str:
    """Return the last line of a script of `scripts/compat`, which fetches and builds; skip the test if it fails.

    With CI=true, or a code in `fatal`, such as 5 for sources that do not compile, the test fails instead.
    """
    command = [str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    if done.returncode == 0:
        return done.stdout.strip().splitlines()[-1]
    reason = f"no {what}: {(done.stderr.strip() or done.stdout.strip())[-600:]}"
    if os.environ.get("CI") == "true" or done.returncode in fatal:
        pytest.fail(reason)
    pytest.skip(reason)


@functools.cache
def class_path() -> str:
    """Return the class path of the driver and its jars, or skip the test (fail it with CI=true)."""
    return built("Java test programs", "fetch.sh", str(SOURCES))


def payload(ledger: int, entry: int, size: int) -> bytes:
    """Return the entry that the driver writes; `Clients.payload` in Java."""
    start = (ledger * 31 + entry * 7) & 255
    run = (bytes(range(256)) * (size // 256 + 2))[start : start + size]
    return (entry.to_bytes(8, "big") + run[8:])[:size]


def described(ledger: int, entry: int, size: int, *, length: int | None = None) -> list[Any]:
    """Return the driver's report of an entry, if all entries of the ledger have `size` bytes or `length` is given."""
    whole = size * (entry + 1) if length is None else length
    return [entry, whole, size, hashlib.sha256(payload(ledger, entry, size)).hexdigest()]


class JavaError(Exception):
    """The error of a command; `name` is that of the Java client, such as `LedgerFenced`."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class JavaDriver:
    """Owns one JVM. Commands run concurrently; `send` does not wait, `call` does."""

    def __init__(self, folder: Path, name: str = "java") -> None:
        self.log = folder / f"{name}.log"
        command = ["java", "-Xms128m", "-Xmx768m", *JAVA_OPTIONS, "-cp", class_path(), "dev.quire.compat.Driver"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("ab"), text=True, bufsize=1
        )
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._acked: dict[int, int] = {}
        self._acked_changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, op: str, **arguments: Any) -> "Future[Any]":
        """Start a command. The future gets its result, a JavaError, or ConnectionError if the JVM has ended."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        line = json.dumps({"id": number, "op": op, **arguments})
        with self._lock:
            assert self.process.stdin is not None
            self._waiting[number] = future
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        return future

    def call(self, op: str, **arguments: Any) -> Any:
        """Run a command and return its result. JavaError if it fails."""
        return self.send(op, **arguments).result(ANSWER_TIMEOUT_S)

    def fails(self, op: str, **arguments: Any) -> str:
        """Run a command that must fail, and return the name of its error."""
        with pytest.raises(JavaError) as caught:
            self.call(op, **arguments)
        return caught.value.name

    def acked(self, ledger: int) -> int:
        """Return the highest entry that `write_until_error` has reported; -1 for none."""
        return self._acked.get(ledger, -1)

    def wait_acked(self, ledger: int, entry: int) -> None:
        """Wait until `write_until_error` has reported `entry`."""
        with self._acked_changed:
            reached = self._acked_changed.wait_for(lambda: self.acked(ledger) >= entry, ANSWER_TIMEOUT_S)
        assert reached, f"ledger {ledger} got to {self.acked(ledger)}, not to {entry}"

    def kill(self) -> None:
        """Kill it with SIGKILL. Its earlier reports are processed when this returns."""
        self.process.kill()
        self.process.wait()
        self._reader.join(20)

    def close(self) -> None:
        """End it by closing its standard input."""
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):
                break  # cut off by a kill
            self._take(json.loads(line))
        with self._lock:
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(ConnectionError(f"the JVM is gone; see {self.log}"))

    def _take(self, message: dict[str, Any]) -> None:
        if "event" in message:
            with self._acked_changed:
                self._acked[message["ledger"]] = message["entry"]
                self._acked_changed.notify_all()
            return
        with self._lock:
            future = self._waiting.pop(message["id"])
        if "error" in message:
            future.set_exception(JavaError(message["error"]["name"], message["error"]["message"]))
        else:
            future.set_result(message["ok"])
