"""Bookies as `quire bookie start` runs them, each a process, on a real etcd; killed and restarted at will."""

import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from tests.support.child import Child
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.ports import free_port

START_TIMEOUT_S = 90
_RUN = "import sys; from quire_bookie.cli.main import main; sys.argv[0] = 'quire'; main()"
_LISTENS = re.compile(r"bookie (\S+) listens on \S+:(\d+)")
SMALL = {
    "diskUsageThreshold": "1",
    "journalMaxSizeMB": "32",
    "dbStorage_writeCacheMaxSizeMb": "24",
    "dbStorage_readAheadCacheMaxSizeMb": "8",
}


class Metadata(Protocol):
    """Where an etcd is reached: itself, a relay before it, or several members by commas."""

    @property
    def endpoint(self) -> str:
        """host:port."""
        ...


class ClusterBookie(Child):
    """One bookie with a folder and a port of its own, which survive `kill` and `stop`."""

    STOP_TIMEOUT_S = 90.0

    def __init__(self, folder: Path, etcd: Metadata, settings: dict[str, str]) -> None:
        super().__init__()
        self.folder = folder
        self.log = folder.with_suffix(".log")
        self.port = free_port()
        self.http_port = free_port()
        self.bookie_id = ""
        self.settings = settings
        self.python = sys.executable
        """The interpreter of the next start: that of another version (`released_versions`) upgrades the bookie."""
        self._etcd = etcd

    def start(self) -> None:
        """Start it and wait until it listens."""
        assert self._process is None
        words = ["bookie", "start", "--metadata", f"etcd://{self._etcd.endpoint}", "--data", str(self.folder)]
        words += ["--port", str(self.port), "--http-port", str(self.http_port), "--advertise", "127.0.0.1"]
        for key, value in {**SMALL, **self.settings}.items():
            words += ["--set", f"{key}={value}"]
        self._process = subprocess.Popen(
            [self.python, "-c", _RUN, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started: Future[str] = Future()
        threading.Thread(target=self._read_log, args=(self._process, started), daemon=True).start()
        try:
            self.bookie_id = started.result(START_TIMEOUT_S)
        except (TimeoutError, ChildProcessError) as error:
            self.kill()
            raise AssertionError(f"the bookie did not start:\n{self.log.read_text()[-4000:]}") from error

    def restart(self, *, kill: bool = True) -> None:
        """On the same port and data."""
        self._end(signal.SIGKILL if kill else signal.SIGTERM)
        self.start()

    def _read_log(self, process: "subprocess.Popen[str]", started: "Future[str]") -> None:
        assert process.stdout is not None
        with process.stdout, self.log.open("a") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                found = _LISTENS.search(line)
                if found:
                    started.set_result(found[1])
        if not started.done():
            started.set_exception(ChildProcessError("it ended"))


class EtcdCluster:
    """An etcd and bookies on it. `java_uri` is what stock Java programs take as metadataServiceUri."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        etcd_folder = folder / "etcd"
        etcd_folder.mkdir(parents=True)
        self.etcd = EtcdServer(require_etcd(), etcd_folder)
        self.etcd.start()
        self.bookies: list[ClusterBookie] = []

    @property
    def java_uri(self) -> str:
        """For the stock metadata-store driver."""
        return f"metadata-store:etcd:http://{self.etcd.endpoint}"

    def add_bookies(self, count: int, *, python: str = sys.executable, **settings: str) -> list[ClusterBookie]:
        """More of them, started side by side; `settings` by BookKeeper's key names."""
        first = len(self.bookies)
        added = [ClusterBookie(self.folder / f"bookie{first + at}", self.etcd, settings) for at in range(count)]
        for bookie in added:
            bookie.python = python
        self.bookies += added
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(ClusterBookie.start, added))
        return added

    def bookie(self, bookie_id: str) -> ClusterBookie:
        """By its id."""
        return next(bookie for bookie in self.bookies if bookie.bookie_id == bookie_id)

    def close(self) -> None:
        """Stop everything."""
        for bookie in self.bookies:
            bookie.kill()
        self.etcd.kill()
