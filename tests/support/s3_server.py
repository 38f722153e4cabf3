"""A real S3 server for tests: versitygw over a folder, built once from its Go module (`scripts/s3/build.sh`).

If it cannot be built, the test is skipped with the reason; with CI=true it fails.
"""

import os
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.polling import until
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 900
START_TIMEOUT_S = 90


def require_s3() -> Path:
    """Return the server's binary, or end the test: with a failure if CI=true, else with a skip."""
    try:
        done = subprocess.run(
            [ROOT / "scripts" / "s3" / "build.sh"], capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
        )
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        if done.returncode == 0:
            return Path(done.stdout.strip())
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if os.environ.get("CI") == "true":
        pytest.fail(f"no S3 server: {reason}")
    pytest.skip(f"no S3 server: {reason}")


class S3Server:
    """One server; its buckets are folders."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary = binary
        self._log = folder / "s3.log"
        self.buckets = folder / "buckets"
        self._state = folder / "state"
        self.port = free_port()
        self.access_key, self.secret_key = "quiretest", "not-a-secret-but-long-enough"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with a client's credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def start(self) -> None:
        """Start and wait until it answers."""
        self.buckets.mkdir(parents=True, exist_ok=True)
        self._state.mkdir(exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._state)}
        environment |= {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(self._binary, "--port", f"127.0.0.1:{self.port}", "--health", "/healthz"),
                    *("posix", "--sidecar", str(self._state), str(self.buckets)),
                ],
                stdout=log,
                stderr=log,
                env=environment,
            )
        try:
            until(
                self._answers,
                lambda: f"the S3 server did not start:\n{self._log.read_text()[-2000:]}",
                timeout_s=START_TIMEOUT_S,
                process=self._process,
            )
        except AssertionError:
            self.stop()
            raise

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/healthz", timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def make_bucket(self, name: str) -> None:
        """Create a bucket, which is a folder of the server."""
        (self.buckets / name).mkdir()

    def stop(self) -> None:
        """Stop the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
