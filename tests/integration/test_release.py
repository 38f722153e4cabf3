"""The artefacts of a release, installed into empty environments with nothing but the packages that they need."""

import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.tools import uv
from tests.support.child import Child
from tests.support.polling import until
from tests.support.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
UV = uv()


def described(wheel: Path) -> str:
    """Return what a package index shows of a wheel: its fields, an empty line, its README."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    """Return what a command prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUIRE_", "PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=kept | environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{words}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    run(
        ROOT / ".venv" / "bin" / "python", "-m", "scripts.release", "--native", "here", "--to", folder / "all", cwd=ROOT
    )
    return folder / "all"


def test_checksums_cover_all_artefacts_and_wheels_have_licence_and_readme(release: Path) -> None:
    lines = [line.split("  ") for line in (release / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    assert all(hashlib.sha256((release / name).read_bytes()).hexdigest() == digest for digest, name in lines)
    wheels = list(release.glob("*.whl"))
    assert len(wheels) >= 5
    for wheel in wheels:
        names = run("python3", "-m", "zipfile", "--list", wheel, cwd=release)
        assert "licenses/LICENSE" in names, wheel.name
        assert "\n\n# quire" in described(wheel).lower(), wheel.name


def test_the_checksums_can_be_signed_and_verified(release: Path, tmp_path: Path) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key", cwd=tmp_path)
    run("ssh-keygen", "-Y", "sign", "-n", "quire-release", "-f", tmp_path / "key", release / "SHA256SUMS", cwd=tmp_path)
    signature = release / "SHA256SUMS.sig"
    try:
        (tmp_path / "signers").write_text(f"releases@example.org {(tmp_path / 'key.pub').read_text()}")
        verify: list[str | Path] = [
            "ssh-keygen",
            "-Y",
            "verify",
            "-f",
            tmp_path / "signers",
            "-I",
            "releases@example.org",
        ]
        with (release / "SHA256SUMS").open() as signed:
            subprocess.run([*verify, "-n", "quire-release", "-s", signature], stdin=signed, check=True)
    finally:
        signature.unlink()


def interpreter(version: str) -> str | None:
    """Return a Python of this version that uv finds, or one of pyenv."""
    find = [UV, "python", "find", "--no-python-downloads", "--system", version]
    found = subprocess.run(find, capture_output=True, text=True, check=False)
    if found.returncode == 0:
        return found.stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(path) for path in pyenv.glob(f"versions/{version}.*/bin/python{version}")), None)


class Installed(Child):
    """A standalone that runs from an environment with the artefacts alone."""

    def __init__(self, release: Path, folder: Path, python: str) -> None:
        super().__init__()
        self.folder, self.bin = folder, folder / "env" / "bin"
        run(UV, "venv", "--quiet", "--no-python-downloads", "--python", python, folder / "env", cwd=folder)
        install = ("pip", "install", "--quiet", "--python", self.bin / "python", "--find-links", release)
        (wheel,) = release.glob("quire-*.whl")
        # A wheel that uv has kept may be one of an older state with the same version.
        run(UV, *install, "--refresh-package", "quire-bookie", "--refresh-package", "quire-broker", wheel, cwd=folder)
        self.port, self.http_port = free_ports(2)

    def quire(self, *words: str) -> str:
        """Return what the command prints."""
        return run(self.bin / "quire", *words, cwd=self.folder)

    def start(self) -> None:
        """Start it and wait for its port."""
        words = ["standalone", "--data", "data", "--bookie-port", "0"]
        words += ["--broker-port", str(self.port), "--http-port", str(self.http_port)]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [self.bin / "quire", *words], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )
        until(lambda: "Quire is running." in self._said(), self._said, process=self._process)

    def _said(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(params=PYTHONS)
def installed(release: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Installed]:
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"Python {request.param} is not installed")
    found = Installed(release, tmp_path, python)
    yield found
    found.kill()


def test_a_message_goes_through_a_standalone_from_the_artefacts_alone(installed: Installed, release: Path) -> None:
    native = any("abi3" in wheel.name for wheel in release.glob("*.whl"))
    said = installed.quire("version", "-v")
    assert ("native steps: active" in said) == native, said
    # Only the base is installed: no library of an extra.
    listed = run(UV, "pip", "list", "--python", installed.bin / "python", cwd=installed.folder)
    assert "grpcio" not in listed and "obstore" not in listed
    installed.start()
    url, http = f"pulsar://127.0.0.1:{installed.port}", f"http://127.0.0.1:{installed.http_port}"
    (installed.folder / "lines").write_text("hello\n")
    installed.quire("produce", "my-topic", "lines", "--broker", url)
    assert "hello" in installed.quire("consume", "my-topic", "--broker", url, "--count", "1")
    assert "my-topic" in installed.quire("topic", "list", "--http", http)
