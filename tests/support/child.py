"""A server that a test runs as a process of its own, and ends in order or at once."""

import signal
import subprocess
from typing import Any


class Child:
    """Owns the process of one server. A subclass starts it and keeps ports and data for the next start."""

    STOP_TIMEOUT_S = 60.0
    """After this long a process that does not end is killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[Any] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Between `start` and what ends it, as far as it did not end by itself."""
        return self._process is not None and self._process.poll() is None

    def send_signal(self, which: signal.Signals) -> None:
        """Send a signal to the running process, without waiting."""
        assert self._process is not None
        self._process.send_signal(which)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order, with SIGTERM."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(self.STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
