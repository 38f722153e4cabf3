"""A stock Java bookie as a process, on the etcd that ours use or on ZooKeeper."""

import signal
import subprocess
from pathlib import Path
from typing import Protocol

from tests.support.java_driver import JAVA_OPTIONS, class_path
from tests.support.polling import until
from tests.support.ports import free_port

START_TIMEOUT_S = 60
READY_LINE = "Started component bookie-server"


class Metadata(Protocol):
    """Where the cluster keeps its metadata."""

    @property
    def java_uri(self) -> str:
        """The value of metadataServiceUri."""
        ...


class JavaBookie:
    """Its folder and port survive `kill`."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.log = folder / "log"
        self.port = free_port()
        self.bookie_id = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        settings = {
            "bookiePort": self.port,
            "advertisedAddress": "127.0.0.1",
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "metadataServiceUri": metadata.java_uri,
            "journalDirectories": folder / "journal",
            "ledgerDirectories": folder / "ledgers",
            "indexDirectories": folder / "ledgers",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "dbStorage_writeCacheMaxSizeMb": 32,
            "dbStorage_readAheadCacheMaxSizeMb": 16,
            "dbStorage_rocksDB_blockCacheSize": 16 << 20,
            "httpServerEnabled": "false",
            "enableStatistics": "false",
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
            "minUsableSizeForIndexFileCreation": 1,
            "nettyMaxFrameSizeBytes": 5_253_120,
        }
        (folder / "bk.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def move_to(self, metadata: Metadata) -> None:
        """Let its next start use other metadata."""
        file = self.folder / "bk.conf"
        lines = [line for line in file.read_text().splitlines() if not line.startswith("metadataServiceUri=")]
        file.write_text("\n".join([*lines, f"metadataServiceUri={metadata.java_uri}", ""]))

    def format_cluster(self) -> None:
        """Create the nodes of a new cluster, as `bookkeeper shell initnewcluster`."""
        command = ["java", *JAVA_OPTIONS, "-cp", class_path(), "org.apache.bookkeeper.bookie.BookieShell"]
        command += ["-conf", str(self.folder / "bk.conf"), "initnewcluster"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        """Start it and wait until it serves."""
        command = ["java", "-Xms128m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m", *JAVA_OPTIONS, "-Dlevel=info"]
        command += ["-cp", class_path(), "org.apache.bookkeeper.server.Main", "--conf", str(self.folder / "bk.conf")]
        self.log.unlink(missing_ok=True)
        self._process = subprocess.Popen(command, stdout=self.log.open("ab"), stderr=subprocess.STDOUT)
        # It listens long before it has registered, and takes its stale registration away in between.
        until(
            lambda: READY_LINE in self.log.read_text(),
            lambda: f"the Java bookie did not start:\n{self.log.read_text()[-3000:]}",
            timeout_s=START_TIMEOUT_S,
            poll_s=0.1,
            process=self._process,
        )

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
