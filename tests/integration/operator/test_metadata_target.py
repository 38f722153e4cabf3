"""Another metadata store in the spec of running children, with real etcd servers and a real API server."""

import base64
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from quire_operator.api.shared import MetadataStore
from quire_operator.builders.naming import BOOKIE, BROKER, labels
from quire_operator.cluster.bookie_http import BookieHttp
from quire_operator.cluster.broker_rest import BrokerRest
from quire_operator.cluster.etcd_gateway import ask_store
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.observing_target import mounted_config_maps
from quire_operator.plan.metadata_target import StoreAnswer
from quire_operator.reconcile import reconcile_bookie, reconcile_managed_ledger
from tests.integration.operator.kube_api import KubeApi
from tests.support.certificates import Authority
from tests.support.etcd_server import EtcdServer, require_etcd
from tests.support.kube_resources import bookie, managed_ledger
from tests.support.ports import free_port

pytestmark = pytest.mark.slow
NOW_S = 1_900_000_000.0
CLUSTER, OTHER = "6f1c7d3e-0000-4000-8000-000000000001", "6f1c7d3e-0000-4000-8000-000000000002"


def initialise(server: EtcdServer, cluster_id: str) -> None:
    key, value = (base64.b64encode(one.encode()).decode() for one in ("/ledgers/INSTANCEID", cluster_id))
    server.call("kv/put", {"key": key, "value": value})


@pytest.fixture
def other_etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Another store, without a cluster in it yet."""
    folder = tmp_path / "other"
    folder.mkdir()
    server = EtcdServer(require_etcd(), folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class Children:
    """A pool and a ManagedLedger whose pods run, as far as their objects say; reconciled by `passes`."""

    def __init__(self, api: KubeApi, kube: Kube, session: aiohttp.ClientSession, namespace: str) -> None:
        self.api = api
        self.kube = kube
        self.namespace = namespace
        self._http, self._brokers = BookieHttp(session, free_port()), BrokerRest(session, free_port())
        self._times = itertools.count()

    async def passes(self) -> None:
        """Enough for finalizers, children and statuses; each a minute after the one before."""
        for _ in range(3):
            now_s = NOW_S + 60 * next(self._times)
            await reconcile_bookie(self.kube, self._http, self.namespace, "pool", default_image="quire:1", now_s=now_s)
            await reconcile_managed_ledger(
                self.kube, self._brokers, self.namespace, "orders", default_image="quire:1", now_s=now_s
            )

    def path(self, plural: str, name: str) -> str:
        return f"/apis/quire.dev/v1alpha1/namespaces/{self.namespace}/{plural}/{name}"

    def declare(self, endpoints: list[str]) -> None:
        """Create both resources."""
        pool = bookie(metadata={"endpoints": endpoints})
        self.api.create(self.path("bookies", "").rstrip("/"), pool).expect()
        self.api.create(self.path("managedledgers", "").rstrip("/"), managed_ledger()).expect()

    def change(self, **spec: Any) -> None:
        """Change the pool's spec, as an administrator does."""
        self.api.merge(self.path("bookies", "pool"), {"spec": spec}).expect()

    def start_pods(self) -> None:
        """Make the pods that a controller and a kubelet would have started."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        for owner, part in (("pool", BOOKIE), ("orders", BROKER)):
            metadata = {"name": f"{owner}-{part}-0", "labels": labels(owner, part)}
            container = {"name": "quire", "image": "quire:1"}
            self.api.create(path, {"metadata": metadata, "spec": {"containers": [container]}}).expect()
            state = {"ready": True, "started": True, "restartCount": 0, "imageID": "", "state": {"running": {}}}
            status = {"phase": "Running", "containerStatuses": [container | state]}
            self.api.merge(f"{path}/{metadata['name']}/status", {"status": status}).expect()

    def templates(self) -> dict[str, Any]:
        """Everything with which pods start: a change of any of it replaces pods, or reaches them at a restart."""
        apps, core = (f"/{group}/namespaces/{self.namespace}" for group in ("apis/apps/v1", "api/v1"))
        workloads = ("statefulsets/pool-bookie", "statefulsets/orders-broker", "deployments/pool-autorecovery")
        found = {one: self.api.get(f"{apps}/{one}").expect()["spec"]["template"] for one in workloads}
        mounted = {one.partition("/")[2]: mounted_config_maps(template)[0] for one, template in found.items()}
        return found | {
            one: self.api.get(f"{core}/configmaps/{name}").expect()["data"] for one, name in mounted.items()
        }

    def stalled(self) -> set[tuple[str, str]]:
        """Status and reason of `Stalled`, of both resources."""
        resources = [
            self.api.get(self.path(*at)).expect() for at in (("bookies", "pool"), ("managedledgers", "orders"))
        ]
        found = [one for each in resources for one in each["status"]["conditions"] if one["type"] == "Stalled"]
        assert len(found) == 2
        return {(one["status"], one["reason"]) for one in found}


@pytest.fixture
async def children(kubeconfig: Path, kube: KubeApi, namespace: str) -> AsyncIterator[Children]:
    async with await Kube.open(str(kubeconfig)) as client, aiohttp.ClientSession() as session:
        yield Children(kube, client, session, namespace)


async def test_running_children_follow_the_spec_only_to_the_same_cluster(
    children: Children, etcd_server: EtcdServer, other_etcd: EtcdServer
) -> None:
    initialise(etcd_server, CLUSTER)
    children.declare([etcd_server.endpoint])
    await children.passes()
    children.start_pods()
    before = children.templates()

    children.change(metadata={"endpoints": [f"127.0.0.1:{free_port()}"]})
    await children.passes()
    assert children.stalled() == {("True", "MetadataTargetUnreachable")}
    assert children.templates() == before

    children.change(metadata={"endpoints": [etcd_server.endpoint, other_etcd.endpoint]})
    await children.passes()
    assert children.stalled() == {("True", "OtherCluster")}, "an empty store"
    initialise(other_etcd, OTHER)
    await children.passes()
    assert children.stalled() == {("True", "OtherCluster")}
    assert children.templates() == before

    children.change(image="quire:2")
    await children.passes()
    changed = children.templates()
    assert changed["statefulsets/pool-bookie"]["spec"]["containers"][0]["image"] == "quire:2", "the rest follows"
    for one in ("pool-bookie", "orders-broker", "pool-autorecovery"):
        assert changed[one] == before[one]

    again = f"localhost:{etcd_server.port}"
    children.change(metadata={"endpoints": [again]})
    await children.passes()
    assert children.stalled() == {("False", "NotStalled")}
    after = children.templates()
    for one in ("pool-bookie", "orders-broker", "pool-autorecovery"):
        assert f"etcd://{again}" in after[one]["quire.toml"]
    for one in ("statefulsets/pool-bookie", "statefulsets/orders-broker", "deployments/pool-autorecovery"):
        assert after[one]["metadata"]["annotations"] != changed[one]["metadata"]["annotations"], "a roll"


async def test_an_administrator_can_accept_a_store_when_the_present_one_is_gone(
    children: Children, etcd_server: EtcdServer, other_etcd: EtcdServer
) -> None:
    children.declare([etcd_server.endpoint])
    await children.passes()
    children.start_pods()
    etcd_server.kill()
    initialise(other_etcd, CLUSTER)
    children.change(metadata={"endpoints": [other_etcd.endpoint]})
    await children.passes()
    assert children.stalled() == {("True", "MetadataTargetUnverified")}
    accepted = {"annotations": {"quire.dev/accept-metadata": other_etcd.endpoint}}
    children.api.merge(children.path("bookies", "pool"), {"metadata": accepted}).expect()
    await children.passes()
    assert children.stalled() == {("False", "NotStalled")}
    assert f"etcd://{other_etcd.endpoint}" in children.templates()["orders-broker"]["quire.toml"]


async def test_children_that_never_ran_may_correct_their_store(children: Children) -> None:
    children.declare(["typo:2379"])
    await children.passes()
    children.change(metadata={"endpoints": ["etcd:2379"]})
    await children.passes()
    assert children.stalled() == {("False", "NotStalled")}
    assert "etcd://etcd:2379" in children.templates()["orders-broker"]["quire.toml"]


async def test_children_of_an_earlier_version_are_protected_too(children: Children, etcd_server: EtcdServer) -> None:
    initialise(etcd_server, CLUSTER)
    children.declare([etcd_server.endpoint])
    await children.passes()
    children.start_pods()
    before = children.templates()
    for name in ("pool-bookie", "orders-broker"):
        path = f"/apis/apps/v1/namespaces/{children.namespace}/statefulsets/{name}"
        children.api.merge(path, {"metadata": {"annotations": {"quire.dev/metadata": None}}}).expect()
    children.change(metadata={"endpoints": [f"127.0.0.1:{free_port()}"]})
    await children.passes()
    assert children.stalled() == {("True", "MetadataTargetUnreachable")}
    assert children.templates() == before


def secret_of(authority: Authority) -> dict[str, str]:
    """Return the data of a Secret for a client."""
    pem = authority.issue("client", "client.example")
    files = {"ca.crt": authority.trust, "tls.crt": pem.certificate, "tls.key": pem.key}
    return {name: Path(file).read_text() for name, file in files.items()}


async def test_a_store_is_asked_with_its_secrets(children: Children, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = authority.issue("server", "127.0.0.1")
    tls = ("--cert-file", pem.certificate, "--key-file", pem.key)
    trust = ("--client-cert-auth", "--trusted-ca-file", authority.trust)
    folder = tmp_path / "etcd"
    folder.mkdir()
    plain = EtcdServer(require_etcd(), folder)
    plain.start()
    initialise(plain, CLUSTER)
    for user in ("root", "quire"):
        plain.call("auth/user/add", {"name": user, "password": "secret"})
        plain.call("auth/user/grant", {"user": user, "role": "root"})
    plain.call("auth/enable", {})
    plain.stop()
    server = EtcdServer(plain.binary, folder, (*tls, *trust), scheme="https")
    server.port, server.peer_port = plain.port, plain.peer_port
    server.start()
    try:
        secrets = f"/api/v1/namespaces/{children.namespace}/secrets"
        for name, data in (("tls", secret_of(authority)), ("auth", {"username": "quire", "password": "secret"})):
            children.api.create(secrets, {"metadata": {"name": name}, "stringData": data}).expect()
        wanted = {"endpoints": [server.endpoint], "tls": {"secretName": "tls"}, "auth": {"secretName": "auth"}}

        async def answer(**changes: Any) -> StoreAnswer:
            store = MetadataStore.model_validate(wanted | changes)
            return (await ask_store(children.kube, children.namespace, store))[server.endpoint]

        assert await answer() == StoreAnswer(CLUSTER)
        for changes in ({"auth": None}, {"tls": None}, {"tls": {"secretName": "tls", "clientCertificate": False}}):
            refused = await answer(**changes)
            assert refused.cluster_id is None, json.dumps(changes)
            assert refused.error
        assert (await answer(auth={"secretName": "missing"})).error == (
            "Secret missing lacks username or password: add them"
        )
    finally:
        server.kill()
