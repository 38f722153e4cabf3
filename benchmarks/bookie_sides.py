"""The two sides of `make bench-bookie` as processes: stock Java bookies and Quire's, each with its own etcd.

Owns the processes and their folders. Both sides get the same disk, client and range of ports, and use their default
configuration (the Java bookie: 1 GiB of heap, 2 GiB of direct memory, journal synced).
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.servers import PEERS, cpu_seconds

START_TIMEOUT_S = 60.0


def memory_mib(pid: int) -> tuple[float, float]:
    """Return the current and the peak resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    now, most = (re.search(rf"{field}:\s+(\d+)", status) for field in ("VmRSS", "VmHWM"))
    assert now is not None and most is not None
    return int(now[1]) / 1024, int(most[1]) / 1024


def folder_mib(folder: Path) -> float:
    """Return the disk space of the files below a folder, in MiB."""
    return sum(path.stat().st_blocks for path in folder.rglob("*") if path.is_file()) * 512 / 2**20


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Side:
    """Several bookies of one kind and their etcd. `start_s`: from the start of a process until clients can find it.
    `payload_mib`: the payload added so far, counted once whatever the number of replicas."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.etcd_port = free_port()
        self._environment = os.environ | {
            "RUN": str(folder),
            "ETCD_PORT": str(self.etcd_port),
            "ETCD_PEER": str(free_port()),
            "BOOKIE_PORT_BASE": str(free_port() - 10),
        }
        self.start_s: list[float] = []
        self.payload_mib = 0.0
        self.numbers: list[int] = []

    @property
    def uri(self) -> str:
        """The metadata URI for the Java client."""
        return f"metadata-store:etcd:http://127.0.0.1:{self.etcd_port}"

    def open(self) -> None:
        """Start etcd."""
        self.folder.mkdir(parents=True)
        self.script("etcd.sh", "start")

    def close(self) -> None:
        """Stop all processes and delete the data."""
        for number in list(self.numbers):
            self.stop(number)
        self.script("etcd.sh", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def script(self, name: str, *arguments: str) -> str:
        """Run one of the peers' scripts; return its output."""
        answer = subprocess.run(
            [str(PEERS / name), *arguments], env=self._environment, capture_output=True, text=True, check=False
        )
        if answer.returncode:
            raise SystemExit(f"{name} {' '.join(arguments)} failed: {answer.stdout[-1000:]}{answer.stderr[-2000:]}")
        return answer.stdout

    def start(self, number: int) -> None:
        """Start one bookie and wait until it is registered."""
        raise NotImplementedError

    def stop(self, number: int) -> None:
        """Stop it cleanly."""
        raise NotImplementedError

    def pid(self, number: int) -> int:
        """Return the id of its process."""
        raise NotImplementedError

    def journal_and_ledgers(self, number: int) -> tuple[Path, Path]:
        """Its folders."""
        raise NotImplementedError

    def cpu_s(self) -> float:
        """Return the CPU seconds of all bookies so far."""
        return sum(cpu_seconds(self.pid(number)) for number in self.numbers)

    def rss_mib(self) -> float:
        """Return the resident memory of the largest bookie in MiB."""
        return max(memory_mib(self.pid(number))[0] for number in self.numbers)

    def rss_most_mib(self) -> float:
        """Return the highest peak memory among the bookies in MiB."""
        return max(memory_mib(self.pid(number))[1] for number in self.numbers)

    def disk_mib(self) -> tuple[float, float]:
        """Return the disk space of journal and ledgers of the first bookie in MiB."""
        journal, ledgers = self.journal_and_ledgers(1)
        return folder_mib(journal), folder_mib(ledgers)


class JavaSide(Side):
    """Stock BookKeeper 4.17.3."""

    name = "java"

    def open(self) -> None:
        """Start etcd and create the nodes of a new cluster."""
        super().open()
        self.script("bookie.sh", "format", "ms-etcd")

    def start(self, number: int) -> None:
        """Start one bookie and wait until it reports that it serves."""
        output = self.script("bookie.sh", "start", str(number), "ms-etcd")
        match = re.search(r"startup_ms (\d+)", output)
        if match is None:
            raise SystemExit(f"the Java bookie did not start: {output}")
        self.start_s.append(int(match[1]) / 1000)
        self.numbers.append(number)

    def stop(self, number: int) -> None:
        """Stop it cleanly."""
        self.numbers.remove(number)
        self.script("bookie.sh", "stop", str(number))

    def pid(self, number: int) -> int:
        """Return the process id of the JVM."""
        return int((self.folder / f"bookie{number}" / "pid").read_text())

    def journal_and_ledgers(self, number: int) -> tuple[Path, Path]:
        """Its folders."""
        folder = self.folder / f"bookie{number}"
        return folder / "journal", folder / "ledgers"


class QuireSide(Side):
    """`quire bookie start`."""

    name = "quire"

    def __init__(self, folder: Path, event_loop: str = "auto", changed: Sequence[str] = ()) -> None:
        """`changed`: settings as KEY=VALUE that differ from their default."""
        super().__init__(folder)
        self._event_loop = event_loop
        self._changed = changed
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports: dict[int, int] = {}

    def start(self, number: int) -> None:
        """Start one bookie and wait until its log says that clients reach it; it is registered by then."""
        folder = self.folder / f"bookie{number}"
        folder.mkdir(exist_ok=True)
        port = self._ports.setdefault(number, free_port())
        command = [str(Path(sys.executable).parent / "quire"), "bookie", "start", "--advertise", "127.0.0.1"]
        command += ["--metadata", f"etcd://127.0.0.1:{self.etcd_port}", "--data", str(folder / "data")]
        command += ["--port", str(port), "--event-loop", self._event_loop]
        command += [argument for setting in self._changed for argument in ("--set", setting)]
        begun = time.monotonic()
        log_path = folder / "log"
        with log_path.open("wb") as log:
            process = self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log)
        while b"clients connect to" not in log_path.read_bytes():
            if process.poll() is not None or time.monotonic() - begun > START_TIMEOUT_S:
                raise SystemExit(f"our bookie did not start: {log_path.read_text()[-3000:]}")
            time.sleep(0.005)
        self.start_s.append(time.monotonic() - begun)
        self.numbers.append(number)

    def stop(self, number: int) -> None:
        """Stop it cleanly."""
        self.numbers.remove(number)
        process = self._processes.pop(number)
        process.send_signal(signal.SIGTERM)
        process.wait(60)

    def pid(self, number: int) -> int:
        """Return the process id."""
        return self._processes[number].pid

    def bookie_id(self, number: int) -> str:
        """Return the bookie id from its log."""
        found = re.search(r"bookie (\S+) listens on", (self.folder / f"bookie{number}" / "log").read_text())
        assert found is not None, "the log of a running bookie has this line"
        return found[1]

    def journal_and_ledgers(self, number: int) -> tuple[Path, Path]:
        """Its folders."""
        data = self.folder / f"bookie{number}" / "data"
        return data / "journal", data / "ledgers"
