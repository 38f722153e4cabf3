"""The sides of a comparison as processes: Quire's standalone, a proxy before it, and a stock Pulsar standalone.

Both run one bookie with quorums 1/1/1 and a synced journal on the same disk, and are used over loopback.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.certificates import Authority

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / "scripts" / "peers"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
QUIRE_PORTS = 6657, 8087, 3197
"""Of the Pulsar protocol, of HTTP and of the bookie."""


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its threads so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def resident_mb(pid: int) -> int:
    """Return the resident memory of a process in MiB."""
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) // 1024 if match else 0


def wait_until_it_answers(
    process: "subprocess.Popen[bytes]", url: str, output: Callable[[], str] = lambda: "see its log"
) -> None:
    """Wait for status 200. SystemExit with `output` if the process ends before."""
    while True:
        if process.poll() is not None:
            raise SystemExit(f"{process.args!r} ended: {output()}")
        try:
            with urllib.request.urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)


class _Started:
    """A process of ours that is measured."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.start_s = 0.0

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)


class Certificates:
    """An authority, and the certificate of a server on this machine."""

    def __init__(self, folder: Path) -> None:
        """Write the files into `folder`."""
        authority = Authority(folder)
        self.trust, pem = authority.trust, authority.issue("server")
        self.settings = f"tlsCertificateFilePath={pem.certificate}", f"tlsKeyFilePath={pem.key}"
        """Settings of a server that uses them."""


class Quire(_Started):
    """`quire standalone` on a fresh folder."""

    name = "quire"
    url = "pulsar://127.0.0.1:6657"
    url_tls = "pulsar+ssl://localhost:6658"
    trust = ""

    def __init__(
        self,
        folder: Path,
        extra: tuple[str, ...] = (),
        certificates: Certificates | None = None,
        ports: tuple[int, int, int] = QUIRE_PORTS,
    ) -> None:
        """`extra`: further arguments of the command. With certificates it listens with TLS, too.

        `ports`: of the Pulsar protocol, of HTTP and of the bookie.
        """
        super().__init__()
        if certificates is not None:
            self.trust = certificates.trust
            for setting in ("brokerServicePortTls=6658", *certificates.settings):
                extra += ("--set", setting)
        self._folder = folder / "quire"
        self._extra = extra
        self._ports = ports

    def start(self) -> None:
        """Start and wait until it is healthy."""
        command = [str(Path(sys.executable).parent / "quire"), "standalone", "--data", str(self._folder)]
        broker_port, http_port, bookie_port = map(str, self._ports)
        command += ["--broker-port", broker_port, "--http-port", http_port, "--bookie-port", bookie_port, *self._extra]
        begun = time.monotonic()
        with (self._folder.parent / "quire.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        log_path = self._folder.parent / "quire.log"
        wait_until_it_answers(
            self._process, f"http://127.0.0.1:{http_port}/healthz", lambda: log_path.read_text()[-2000:]
        )
        self.start_s = time.monotonic() - begun

    def stop(self) -> None:
        """Stop it and delete its data."""
        super().stop()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def standalone(extra: tuple[str, ...] = (), ports: tuple[int, int, int] = QUIRE_PORTS) -> Iterator[Quire]:
    """Run a `Quire` on a temporary folder; for the arguments see there."""
    with tempfile.TemporaryDirectory() as folder:
        quire = Quire(Path(folder), extra, ports=ports)
        quire.start()
        try:
            yield quire
        finally:
            quire.stop()


class Proxy(_Started):
    """`quire proxy` before a `Quire` that runs. Its process is the measured one."""

    name = "proxy"
    url = "pulsar://127.0.0.1:6667"
    url_tls = "pulsar+ssl://localhost:6668"
    trust = ""

    def __init__(self, broker: Quire, certificates: Certificates | None = None) -> None:
        """With certificates it listens with TLS, too, and connects to the broker by TLS only."""
        super().__init__()
        self._settings: tuple[str, ...] = (
            f"brokerServiceURL={broker.url.replace('127.0.0.1', 'localhost')}",  # as the broker advertises it
            "brokerProxyAllowedTargetPorts=*",
            "bindAddress=127.0.0.1",
        )
        if certificates is not None:
            self.trust = certificates.trust
            self._settings += (
                "servicePortTls=6668",
                "tlsEnabledWithBroker=true",
                f"brokerServiceURLTLS={broker.url_tls}",
                f"brokerClientTrustCertsFilePath={certificates.trust}",
                *certificates.settings,
            )

    def start(self) -> None:
        """Start and wait until it is ready."""
        command = [str(Path(sys.executable).parent / "quire"), "proxy", "--port", "6667", "--http-port", "8097"]
        command += [word for setting in self._settings for word in ("--set", setting)]
        begun = time.monotonic()
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until_it_answers(self._process, "http://127.0.0.1:8097/readyz")
        self.start_s = time.monotonic() - begun


class Pulsar:
    """A stock Pulsar standalone: one broker and one bookie in one JVM."""

    name = "pulsar"
    url = "pulsar://127.0.0.1:6655"
    url_tls = trust = ""

    def __init__(self, folder: Path) -> None:
        self._environment = os.environ | {"RUN": str(folder / "pulsar")}
        self._pid_file = folder / "pulsar" / "broker" / "pid"
        self._folder = folder / "pulsar"
        self.start_s = 0.0

    def start(self) -> None:
        """Start it and wait until it reports that it serves."""
        begun = time.monotonic()
        answer = subprocess.run(
            [str(PEERS / "pulsar.sh"), "standalone"], env=self._environment, capture_output=True, text=True, check=False
        )
        if "standalone up" not in answer.stdout:
            raise SystemExit(f"the stock Pulsar did not start (run `make peers` first): {answer.stdout[-2000:]}")
        self.start_s = time.monotonic() - begun

    @property
    def pid(self) -> int:
        """The process id of the JVM."""
        return int(self._pid_file.read_text())

    def stop(self) -> None:
        """Stop it and delete its data."""
        subprocess.run([str(PEERS / "pulsar.sh"), "stop"], env=self._environment, check=False, capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)
