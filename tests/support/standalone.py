"""A `quire standalone` process that a test starts, kills and starts again on the same folder and ports."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.polling import until
from tests.support.ports import free_port_range, free_ports

START_TIMEOUT_S = 180.0
MAKE_VARIABLES = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "ARGS")
"""Of `make test ARGS=...`: a `make run` within a test would take the same ARGS."""
QUIRE = str(Path(sys.executable).parent / "quire")


class StandaloneProcess:
    """One data folder and its ports; at most one process at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        bookies: int = 1,
        settings: tuple[str, ...] = (),
        metadata: str | None = None,
        host: str = "127.0.0.1",
        options: tuple[str, ...] | None = None,
        open_files: int | None = None,
    ) -> None:
        """`host`: the address that it listens on and that the tests ask. `options`: flags in place of those for it.

        `open_files`: the limit of the process; None: the limit of the test.
        """
        self.data = folder / "data"
        self.log = folder / "standalone.log"
        broker, http = free_ports(2)
        self.url = f"pulsar://{host}:{broker}"
        self.http = f"http://{host}:{http}"
        self._command = [QUIRE, "standalone", "--data", str(self.data), "--bookies", str(bookies)]
        self._command += ["--broker-port", str(broker), "--http-port", str(http)]
        # Fixed ports, as a user has: a bookie that comes back under its old address takes its registration over.
        self.bookie_port = free_port_range(bookies)
        self._command += ["--bookie-port", str(self.bookie_port)]
        self._command += ["--advertise", host, "--host", host] if options is None else options
        self._command += ["--set", "diskUsageThreshold=1"]
        self._command += [part for setting in settings for part in ("--set", setting)]
        self._command += ["--metadata", metadata] if metadata else []
        if open_files is not None:
            self._command = ["sh", "-c", f'ulimit -n {open_files}; exec "$@"', "sh", *self._command]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it is healthy."""
        self.wait_until_healthy(self.launch())

    def launch(self) -> "subprocess.Popen[bytes]":
        """Start, and wait for nothing."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        return self._process

    def wait_until_healthy(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait until /healthz reports healthy. Fails if the process ends instead."""
        until(self.is_healthy, lambda: f"it is not healthy:\n{self.tail()}", timeout_s=START_TIMEOUT_S, process=process)

    def is_healthy(self) -> bool:
        """Whether /healthz answers 200."""
        try:
            with urllib.request.urlopen(self.http + "/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send one signal (a second one would end it at once) and return the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.wait(60)

    def close(self) -> None:
        """End the process in any state."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""

    def text(self, path: str) -> str:
        """The body of a GET."""
        with urllib.request.urlopen(self.http + path, timeout=30) as answer:
            return str(answer.read().decode())

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """A REST call; returns the decoded answer or None."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.http + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def environment() -> dict[str, str]:
    """Return the environment without Quire's settings and those of an outer `make`, for tests of the command line."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith("QUIRE_") and key not in MAKE_VARIABLES
    }
