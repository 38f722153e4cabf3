"""A real etcd server for tests: found or fetched once, then started, stopped, killed and restarted at will.

Tried in this order: `etcd` on the PATH; the user's cache; Debian's package `etcd-server`, unpacked into the cache
without installing it; etcd's Go module, built into the cache. If none works, the test is skipped with the reason; with
CI=true it fails.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.child import Child
from tests.support.ports import free_port

GO_MODULE = "go.etcd.io/etcd/server/v3"
GO_VERSION = "v3.5.21"
READY_LINE = "serving client traffic"
READY_TIMEOUT_S = 90


class EtcdMissingError(Exception):
    """No etcd could be found or built. The message lists the attempts."""


def find_etcd() -> Path:
    """Return an etcd binary. EtcdMissingError with the reasons if there is none."""
    on_path = shutil.which("etcd")
    if on_path is not None:
        return Path(on_path)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quire" / "etcd"
    cache.mkdir(parents=True, exist_ok=True)
    binary = cache / "etcd"
    with _locked(cache / "LOCK"):
        if binary.exists():
            return binary
        reasons = []
        for way in (_from_debian, _from_go):
            with tempfile.TemporaryDirectory(dir=cache) as work:
                try:
                    way(Path(work)).rename(binary)
                    return binary
                except (OSError, subprocess.SubprocessError) as error:
                    reasons.append(f"{way.__name__.removeprefix('_from_')}: {error}")
    raise EtcdMissingError(f"no etcd on the PATH, and none could be made ({'; '.join(reasons)})")


def require_etcd() -> Path:
    """Return an etcd binary, or end the test: with a failure if CI=true, else with a skip."""
    try:
        return find_etcd()
    except EtcdMissingError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _from_debian(work: Path) -> Path:
    """Unpack the package; with package lists of our own when the system has none."""
    (work / "lists" / "partial").mkdir(parents=True)
    (work / "archives" / "partial").mkdir(parents=True)
    own_lists = ["-o", f"Dir::State::Lists={work / 'lists'}", "-o", f"Dir::Cache={work}", "-o", "Debug::NoLocking=1"]
    try:
        _run(["apt-get", "download", "etcd-server"], work)
    except subprocess.SubprocessError:
        _run(["apt-get", *own_lists, "update"], work)
        _run(["apt-get", *own_lists, "download", "etcd-server"], work)
    package = next(work.glob("etcd-server_*.deb"))
    _run(["dpkg", "-x", package.name, "unpacked"], work)
    return work / "unpacked" / "usr" / "bin" / "etcd"


def _from_go(work: Path) -> Path:
    """Build the module within a module of ours: `go install` refuses modules with replace directives."""
    _run(["go", "mod", "init", "quire.dev/etcd"], work)
    _run(["go", "get", f"{GO_MODULE}@{GO_VERSION}"], work)
    _run(["go", "build", "-mod=mod", "-o", "etcd", GO_MODULE], work)
    return work / "etcd"


def _run(command: list[str], work: Path) -> None:
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise subprocess.SubprocessError(f"{' '.join(command)}: {lines[-1]}")


class EtcdServer(Child):
    """One member on free ports. Its data survives `stop`, `kill` and `restart`."""

    STOP_TIMEOUT_S = 20.0

    def __init__(self, binary: Path, folder: Path, extra: tuple[str, ...] = (), scheme: str = "http") -> None:
        super().__init__()
        self.binary = binary
        self.folder = folder
        self.scheme = scheme
        self.port = free_port()
        self.peer_port = free_port()
        self.extra = extra
        self._ready = threading.Event()

    @property
    def endpoint(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """For `open_metadata_store`."""
        return f"etcd:{self.scheme}://{self.endpoint}"

    def start(self) -> None:
        """Start and wait until it serves."""
        assert self._process is None
        self._ready = threading.Event()
        peer = f"http://127.0.0.1:{self.peer_port}"
        client = f"{self.scheme}://{self.endpoint}"
        command = [str(self.binary), "--name", "m", "--data-dir", str(self.folder / "data"), "--logger", "zap"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"m={peer}"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        self._process = subprocess.Popen(
            [*command, *self.extra], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        threading.Thread(target=self._read_log, args=(self._process, self._ready), daemon=True).start()
        if not self._ready.wait(READY_TIMEOUT_S) or self._process.poll() is not None:
            self.kill()
            raise AssertionError(f"etcd did not start:\n{(self.folder / 'log').read_text()[-3000:]}")

    def restart(self) -> None:
        """Kill and start again on the same ports and data."""
        self.kill()
        self.start()

    def call(self, path: str, body: dict[str, object]) -> dict[str, object]:
        """Call etcd's JSON gateway, for functions that the client under test does not have."""
        request = urllib.request.Request(
            f"http://{self.endpoint}/v3/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            decoded: dict[str, object] = json.load(answer)
            return decoded

    def compact(self) -> int:
        """Compact all revisions before the current one, and return it."""
        header = self.call("kv/range", {"key": "Lw=="})["header"]
        assert isinstance(header, dict)
        revision = int(header["revision"])
        self.call("kv/compaction", {"revision": revision, "physical": True})
        return revision

    def _read_log(self, process: "subprocess.Popen[str]", ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout, (self.folder / "log").open("a") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if READY_LINE in line:
                    ready.set()
        ready.set()
