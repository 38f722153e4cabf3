"""The chart's etcd as a process: its flags are taken, its certificates are the operator's, its health is where it is
looked for."""

import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from quire_operator.certificates import issuing
from quire_operator.certificates.deciding import AUTHORITY_LIFE_S, LIFE_S
from quire_operator.certificates.subjects import etcd_client_subject, etcd_subject
from tests.support.ports import free_port
from tests.unit.charts.rendering import CHART, template, tool
from tests.unit.charts.test_monitoring import OF_OTHERS

pytestmark = pytest.mark.slow
HOST = "quire-etcd-0.quire-etcd-members.quire.svc"
WALL_S = 1_800_000_000.0


def flags(folder: Path, ports: dict[str, int]) -> list[str]:
    """The rendered ones, with this machine in place of the cluster."""
    rendered = template({"etcd": {"members": 1}, "crds": {"install": False}})
    found = [each for each in yaml.load_all(rendered, yaml.CSafeLoader) if each and each["kind"] == "StatefulSet"]
    (container,) = found[0]["spec"]["template"]["spec"]["containers"]
    places = {
        "$(POD_NAME)": "quire-etcd-0",
        HOST: "127.0.0.1",
        "//0.0.0.0": "//127.0.0.1",
        "/var/lib/etcd/data": str(folder / "data"),
        "/etc/etcd/tls": str(folder),
    } | {f":{port}": f":{other}" for port, other in ports.items()}
    words = []
    for word in container["args"]:
        for place, other in places.items():
            word = word.replace(place, other)
        words.append(word)
    return words


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, int]]]:
    """The folder with the certificates, and the ports."""
    import time

    folder = tmp_path_factory.mktemp("etcd")
    ports = {port: free_port() for port in ("2379", "2380", "2381")}
    authority = issuing.new_authority("quire quire", time.time(), AUTHORITY_LIFE_S)
    (folder / "ca.crt").write_bytes(authority.certificate)
    for name, subject in (("tls", etcd_subject("quire-etcd", "quire")), ("client", etcd_client_subject("quire"))):
        pair = issuing.issue(subject, authority, time.time(), LIFE_S)
        place = folder if name == "tls" else folder / "client"
        place.mkdir(exist_ok=True)
        (place / "ca.crt").write_bytes(authority.certificate)
        (place / "tls.crt").write_bytes(pair.certificate)
        (place / "tls.key").write_bytes(pair.key)
    with (folder / "log").open("wb") as log:
        environment = {"PATH": os.environ["PATH"]}
        process = subprocess.Popen([tool("etcd"), *flags(folder, ports)], stderr=log, env=environment)
        try:
            deadline_s = time.monotonic() + 60
            while not _ready(ports["2381"]):
                assert process.poll() is None and time.monotonic() < deadline_s, (folder / "log").read_text()[-2000:]
                time.sleep(0.1)
            yield folder, ports
        finally:
            process.kill()
            process.wait()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_paths_of_the_probes_are_served_in_clear_and_metrics_beside_them(
    etcd: tuple[Path, dict[str, int]],
) -> None:
    port = etcd[1]["2381"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    named = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert {name for name in OF_OTHERS if name.startswith("etcd_")} <= named


def test_helm_test_reaches_it_with_the_clients_certificate_and_nobody_without(
    etcd: tuple[Path, dict[str, int]],
) -> None:
    folder, ports = etcd
    url = f"https://127.0.0.1:{ports['2379']}/health"
    environment = {"PATIENCE_S": "5", "ETCD": url, "ETCD_CERTIFICATES": str(folder / "client")}
    command = [sys.executable, "-c", (CHART / "files" / "check.py").read_text()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    without = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        urllib.request.urlopen(url, timeout=10, context=without)


def test_quire_backs_it_up_as_the_cron_job_does(etcd: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    """With the arguments and variables of the rendered CronJob; the bucket is a folder here."""
    folder, ports = etcd
    backup = {"enabled": True, "to": f"file://{tmp_path}", "keep": 3}
    rendered = template({"etcd": {"members": 1, "backup": backup}, "crds": {"install": False}})
    (job,) = [each for each in yaml.load_all(rendered, yaml.CSafeLoader) if each and each["kind"] == "CronJob"]
    (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    environment = {"PATH": os.environ["PATH"]}
    for each in container["env"]:
        value = each["value"].replace("/etc/quire/metadata-tls", str(folder / "client"))
        environment[each["name"]] = value.replace("quire-etcd.quire.svc:2379", f"127.0.0.1:{ports['2379']}")
    quire = Path(sys.executable).with_name("quire")
    done = subprocess.run(
        [str(quire), *container["args"]], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    # An etcd that no cluster was ever initialised in has nothing to back up, and that is what is said: it was reached.
    assert "certificate" not in done.stderr.lower() and "connect" not in done.stderr.lower(), done.stderr
    assert "the metadata store holds no cluster" in done.stderr
