"""The chart as an OCI artefact: published to a registry in memory, pulled from it, and rendered."""

import os
import subprocess
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.polling import until
from tests.support.ports import free_port
from tests.unit.charts.rendering import CHART, KUBE_VERSION, ROOT, helm, template, tool

VERSION = str(yaml.safe_load((CHART / "Chart.yaml").read_text())["version"])
PLAIN = "--plain-http"


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """Address of an empty OCI registry."""
    port = free_port()
    process = subprocess.Popen(
        [tool("oci-registry"), "-port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: _serves(port), "the registry does not answer", process=process)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _serves(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _publish(*words: str) -> "subprocess.CompletedProcess[str]":
    path = f"{Path(tool('helm')).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [ROOT / "scripts" / "publish_chart.sh", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PATH": path},
    )


def _rendered(chart: str, *words: str) -> str:
    done = helm("template", "quire", chart, "--namespace", "quire", "--kube-version", KUBE_VERSION, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_published_chart_is_pulled_and_renders_as_its_source(registry: str, tmp_path: Path) -> None:
    target = f"oci://{registry}/pulled"
    done = _publish(target, PLAIN)
    assert done.returncode == 0, done.stderr
    assert f"{registry}/pulled/quire:{VERSION}" in done.stdout + done.stderr
    pulled = helm("pull", f"{target}/quire", "--version", VERSION, PLAIN, "--destination", str(tmp_path))
    assert pulled.returncode == 0, pulled.stderr
    archive = tmp_path / f"quire-{VERSION}.tgz"
    with tarfile.open(archive) as files:
        packed = {name.removeprefix("quire/") for name in files.getnames()}
    source = {str(path.relative_to(CHART)) for path in CHART.rglob("*") if path.is_file()}
    assert packed - {".helmignore"} == source - {".helmignore", "README.md"}
    assert _rendered(str(archive)) == template()
    assert _rendered(f"{target}/quire", "--version", VERSION, PLAIN) == template()


def test_a_published_version_is_replaced_only_on_request(registry: str) -> None:
    target = f"oci://{registry}/once"
    assert _publish(target, PLAIN).returncode == 0
    again = _publish(f"{target}/", PLAIN)
    assert again.returncode == 1
    assert f"{target}/quire:{VERSION} is already published" in again.stderr
    assert _publish(target, "--replace", PLAIN).returncode == 0


@pytest.mark.parametrize(("words", "message"), [([], "usage:"), (["registry.example/charts"], "begins with oci://")])
def test_a_target_that_is_no_registry_is_refused(words: list[str], message: str) -> None:
    done = _publish(*words)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_registry_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    done = _publish(f"oci://127.0.0.1:{free_port()}/charts", PLAIN)
    assert done.returncode not in (0, 2)
    assert "connection refused" in done.stderr
