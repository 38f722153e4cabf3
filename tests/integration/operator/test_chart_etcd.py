"""The chart's etcd as processes: its flags are taken, its certificates are the operator's, its health is where it is
looked for."""

import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from quire_bookie.env.chance import SystemChance
from quire_bookie.errors import MetadataUnavailableError, MetadataUnknownError
from quire_bookie.metadata.initialise import initialise
from quire_bookie.metadata.opening import open_metadata_store
from quire_bookie.metadata.store import MetadataStore
from quire_bookie.settings.metadata import MetadataSettings
from quire_operator.certificates import issuing
from quire_operator.certificates.deciding import AUTHORITY_LIFE_S, LIFE_S
from quire_operator.certificates.subjects import etcd_client_subject, etcd_subject
from tests.support.polling import until
from tests.support.ports import free_port
from tests.support.s3_server import S3Server, require_s3
from tests.unit.charts.rendering import CHART, template, tool
from tests.unit.charts.test_monitoring import OF_OTHERS

pytestmark = pytest.mark.slow
HOST = "quire-etcd-{number}.quire-etcd-members.quire.svc"
CLIENT, PEER, HEALTH = "2379", "2380", "2381"
START_S = 60.0
Ports = dict[str, int]


def flags(folder: Path, members: list[Ports], number: int, state: str) -> list[str]:
    """The rendered ones of a member, with this machine in place of the cluster."""
    etcd = {"members": len(members), "initialClusterState": state}
    rendered = template({"etcd": etcd, "crds": {"install": False}})
    found = [each for each in yaml.load_all(rendered, yaml.CSafeLoader) if each and each["kind"] == "StatefulSet"]
    (container,) = found[0]["spec"]["template"]["spec"]["containers"]
    places = {"$(POD_NAME)": f"quire-etcd-{number}"}
    for other, ports in enumerate(members):
        places |= {f"{HOST.format(number=other)}:{port}": f"127.0.0.1:{ours}" for port, ours in ports.items()}
    places |= {f"//0.0.0.0:{port}": f"//127.0.0.1:{ours}" for port, ours in members[number].items()}
    places |= {"/var/lib/etcd/data": str(folder / f"data-{number}"), "/etc/etcd/tls": str(folder)}
    words = []
    for word in container["args"]:
        for place, other_place in places.items():
            word = word.replace(place, other_place)
        words.append(word)
    return words


class Members:
    """Processes of etcd as the chart has them run, and the operator's certificates for them and for clients."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.ports = [{port: free_port() for port in (CLIENT, PEER, HEALTH)} for _ in range(count)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        authority = issuing.new_authority("quire quire", time.time(), AUTHORITY_LIFE_S)
        for name, subject in (("", etcd_subject("quire-etcd", "quire")), ("client", etcd_client_subject("quire"))):
            pair = issuing.issue(subject, authority, time.time(), LIFE_S)
            place = folder / name
            place.mkdir(exist_ok=True)
            (place / "ca.crt").write_bytes(authority.certificate)
            (place / "tls.crt").write_bytes(pair.certificate)
            (place / "tls.key").write_bytes(pair.key)

    def start(self, number: int, state: str = "new") -> None:
        """A member; its folder and its ports stay its own."""
        words = [tool("etcd"), *flags(self.folder, self.ports, number, state)]
        with self._log(number).open("ab") as log:
            self._processes[number] = subprocess.Popen(words, stderr=log, env={"PATH": os.environ["PATH"]})

    def wait(self) -> None:
        """Until all that run are ready, as the kubelet asks them."""
        for number, process in self._processes.items():
            until(
                partial(_ready, self.ports[number][HEALTH]),
                partial(_tail, self._log(number)),
                timeout_s=START_S,
                process=process,
            )

    def kill(self, number: int) -> None:
        """SIGKILL."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def close(self) -> None:
        """All of them."""
        for number in list(self._processes):
            self.kill(number)

    async def store(self) -> MetadataStore:
        """As a client of them all."""
        at = ",".join(f"https://127.0.0.1:{ports[CLIENT]}" for ports in self.ports)
        pem = self.folder / "client"
        access = MetadataSettings(
            ca_path=str(pem / "ca.crt"), cert_path=str(pem / "tls.crt"), key_path=str(pem / "tls.key")
        )
        return await open_metadata_store(f"etcd://{at}", access)

    def _log(self, number: int) -> Path:
        return self.folder / f"log-{number}"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """One that runs."""
    found = Members(tmp_path_factory.mktemp("etcd"), 1)
    try:
        found.start(0)
        found.wait()
        yield found
    finally:
        found.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Members]:
    """None of them runs yet."""
    found = Members(tmp_path, 3)
    yield found
    found.close()


def _tail(log: Path) -> str:
    return log.read_text()[-2000:]


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_the_paths_of_the_probes_are_served_in_clear_and_metrics_beside_them(
    etcd: Members,
) -> None:
    port = etcd.ports[0][HEALTH]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    named = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert {name for name in OF_OTHERS if name.startswith("etcd_")} <= named


def test_helm_test_reaches_it_with_the_clients_certificate_and_nobody_without(etcd: Members) -> None:
    url = f"https://127.0.0.1:{etcd.ports[0][CLIENT]}/health"
    environment = {"PATIENCE_S": "5", "ETCD": url, "ETCD_CERTIFICATES": str(etcd.folder / "client")}
    command = [sys.executable, "-c", (CHART / "files" / "check.py").read_text()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    without = ssl.create_default_context(cafile=str(etcd.folder / "ca.crt"))
    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        urllib.request.urlopen(url, timeout=10, context=without)


async def test_quire_backs_it_up_as_the_cron_job_does_into_a_bucket(etcd: Members, tmp_path: Path) -> None:
    """With the arguments and variables of the rendered CronJob, and the Secret's keys as the kubelet gives them."""
    store = await etcd.store()
    await initialise(store, SystemChance())
    await store.close()
    s3 = S3Server(require_s3(), tmp_path)
    s3.start()
    try:
        s3.make_bucket("backups")
        place = "s3://backups/prod"
        backup = {"enabled": True, "to": place, "keep": 3, "credentialsSecret": "bucket"}
        rendered = template({"etcd": {"members": 1, "backup": backup}, "crds": {"install": False}})
        (job,) = [each for each in yaml.load_all(rendered, yaml.CSafeLoader) if each and each["kind"] == "CronJob"]
        (container,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
        environment = {"PATH": os.environ["PATH"], **s3.environment}
        for each in container["env"]:
            value = each["value"].replace("/etc/quire/metadata-tls", str(etcd.folder / "client"))
            environment[each["name"]] = value.replace("quire-etcd.quire.svc:2379", f"127.0.0.1:{etcd.ports[0][CLIENT]}")
        done = _quire(container["args"], environment)
        assert done.returncode == 0, done.stderr
        verified = _quire(["metadata", "verify", "--from", place, "--json"], environment)
        assert verified.returncode == 0, verified.stderr
        assert list((s3.buckets / "backups" / "prod").rglob("manifest.json"))
    finally:
        s3.stop()


async def test_three_members_are_one_etcd_that_a_lost_one_does_not_stop(three: Members) -> None:
    for number in range(3):
        three.start(number)
    three.wait()
    store = await three.store()
    await initialise(store, SystemChance())
    three.kill(1)
    await _put(store, b"1")
    three.start(1)
    three.wait()
    three.kill(2)
    found = await store.get("/of-this-test")
    assert found is not None and found.value == b"1"
    await _put(store, b"2")
    await store.close()


async def _put(store: MetadataStore, value: bytes) -> None:
    """While another leader is being elected, a write may be of unknown end: it is said, and done again."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            await store.put("/of-this-test", value)
            return
        except (MetadataUnknownError, MetadataUnavailableError):
            assert time.monotonic() < deadline_s, "no leader was elected"


def _quire(words: list[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    quire = str(Path(sys.executable).with_name("quire"))
    return subprocess.run([quire, *words], env=environment, capture_output=True, text=True, timeout=120, check=False)
