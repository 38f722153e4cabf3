"""A stock ZooKeeper server as a process."""

import socket
import subprocess
from pathlib import Path

from tests.support.java_driver import JAVA_OPTIONS, class_path
from tests.support.polling import until
from tests.support.ports import free_port


class ZookeeperServer:
    """Listens when it is made. `java_uri` is what stock Java programs take as metadataServiceUri."""

    def __init__(self, folder: Path, ledger_manager: str) -> None:
        """`ledger_manager`: how BookKeeper arranges ledgers, `hierarchical` or `longhierarchical`."""
        folder.mkdir(parents=True)
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.java_uri = f"zk+{ledger_manager}://{self.address}/ledgers"
        settings = {
            "dataDir": folder / "data",
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": 1000,
            "admin.enableServer": "false",
        }
        (folder / "zoo.cfg").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log = folder / "log"
        command = ["java", "-Xmx256m", *JAVA_OPTIONS, "-cp", class_path()]
        command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(folder / "zoo.cfg")]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        until(
            lambda: self._listens(port),
            lambda: f"ZooKeeper did not start:\n{log.read_text()[-3000:]}",
            timeout_s=60,
            poll_s=0.2,
            process=self._process,
        )

    def _listens(self, port: int) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", port)) == 0

    def close(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.wait()
