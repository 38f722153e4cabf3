"""The Secrets on a fake API server: created ones, foreign ones, and renewals as observed by peers."""

import asyncio
import base64
from typing import Any, cast

import pytest

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.certificates import issuing
from quire_operator.certificates.deciding import AUTHORITY_LIFE_S, DAY_S, TRUST_FIRST_S
from quire_operator.certificates.issuing import Pair
from quire_operator.certificates.keeping import KEPT_S, CertificateSecrets, ForeignSecretError
from quire_operator.certificates.subjects import Subject, bookie_subject, broker_subject, etcd_subject, proxy_subject
from quire_operator.certificates.users import keep_bookie, keep_etcd, keep_managed_ledger
from quire_operator.cluster.kube import Kube
from quire_operator.errors import ConflictError, UnreachableError
from tests.support import kube_resources

NOW_S = 1_800_000_000.0
POOL = Subject("pool-bookie", "bookie", ("pool-bookie",))
ROOT = "/api/v1/namespaces/prod/secrets"


PLACE = {"metadata.namespace": "prod", "metadata.uid": "1"}


def bookie(**spec: Any) -> Bookie:
    return Bookie.model_validate(kube_resources.changed(kube_resources.bookie(**spec), PLACE))


def managed_ledger(**spec: Any) -> ManagedLedger:
    return ManagedLedger.model_validate(kube_resources.changed(kube_resources.managed_ledger(**spec), PLACE))


class Store:
    """Stores Secrets by path, with resourceVersions; `lost` writes raise before they take effect."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.lost = 0
        self.has_four = asyncio.Event()

    async def get(self, path: str) -> dict[str, Any] | None:
        self.asked.append(f"GET {path}")
        await asyncio.sleep(0)
        return self.objects.get(path)

    async def create(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        at = f"{path}/{manifest['metadata']['name']}"
        if at in self.objects:
            raise ConflictError(409, "exists")
        return self._write("POST", at, manifest, "1")

    async def replace(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        version = self.objects[path]["metadata"]["resourceVersion"]
        if manifest["metadata"]["resourceVersion"] != version:
            raise ConflictError(409, "changed")
        return self._write("PUT", path, manifest, str(int(version) + 1))

    def _write(self, verb: str, path: str, manifest: dict[str, Any], version: str) -> dict[str, Any]:
        self.asked.append(f"{verb} {path}")
        if self.lost > 0:
            self.lost -= 1
            raise UnreachableError("no answer")
        self.objects[path] = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}}
        if len(self.objects) == 4:
            self.has_four.set()
        return self.objects[path]

    def writes(self) -> list[str]:
        """Return the writes since the last call."""
        found = [line for line in self.asked if not line.startswith("GET")]
        self.asked.clear()
        return found

    def data(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(value) for key, value in self.objects[f"{ROOT}/{name}"]["data"].items()}

    def facts(self, name: str) -> issuing.Facts:
        data = self.data(name)
        return issuing.read(Pair(data["tls.crt"], data["tls.key"]))

    def trusted(self, name: str) -> list[issuing.Facts]:
        return [issuing.facts(each) for each in issuing.bundle(self.data(name)["ca.crt"])]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def secrets(store: Store) -> CertificateSecrets:
    return CertificateSecrets(cast(Kube, store))


async def test_an_authority_and_a_certificate_are_created_once(store: Store, secrets: CertificateSecrets) -> None:
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    assert store.writes() == [f"POST {ROOT}/quire-ca", f"POST {ROOT}/pool-bookie-tls"]
    assert store.objects[f"{ROOT}/pool-bookie-tls"]["type"] == "kubernetes.io/tls"
    assert set(store.data("pool-bookie-tls")) == {"tls.crt", "tls.key", "ca.crt"}
    assert store.data("pool-bookie-tls")["ca.crt"] == store.data("quire-ca")["ca.crt"]
    assert issuing.is_signed_by(store.facts("pool-bookie-tls"), store.trusted("pool-bookie-tls")[0])
    for fresh in (secrets, CertificateSecrets(cast(Kube, store))):
        await fresh.ensure("prod", "pool-bookie-tls", POOL, NOW_S + 1)
        assert store.writes() == []


async def test_a_complete_secret_is_checked_again_only_after_a_while(store: Store, secrets: CertificateSecrets) -> None:
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    store.asked.clear()
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S + KEPT_S - 1)
    assert store.asked == []
    del store.objects[f"{ROOT}/pool-bookie-tls"]
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S + KEPT_S)
    assert store.writes() == [f"POST {ROOT}/pool-bookie-tls"]
    await secrets.ensure("prod", "pool-bookie-tls", Subject("pool-bookie", "bookie", ("more",)), NOW_S + KEPT_S)
    assert store.writes() == [f"PUT {ROOT}/pool-bookie-tls"]


async def test_concurrent_reconciliations_create_one_authority(store: Store, secrets: CertificateSecrets) -> None:
    await asyncio.gather(*(secrets.ensure("prod", f"pool{n}-tls", POOL, NOW_S) for n in range(8)))
    assert store.writes().count(f"POST {ROOT}/quire-ca") == 1
    assert len({store.data(f"pool{n}-tls")["ca.crt"] for n in range(8)}) == 1


@pytest.mark.parametrize("name", ["quire-ca", "pool-bookie-tls"])
async def test_a_foreign_secret_is_never_changed(store: Store, secrets: CertificateSecrets, name: str) -> None:
    theirs = {"metadata": {"name": name, "resourceVersion": "7"}, "data": {"tls.crt": "eA=="}}
    store.objects[f"{ROOT}/{name}"] = theirs
    with pytest.raises(ForeignSecretError, match=f"the Secret {name} was not created by this operator"):
        await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    assert store.objects[f"{ROOT}/{name}"] == theirs
    fault = await keep_bookie(secrets, bookie(), NOW_S)
    assert fault is not None and "name it in tls.secretName" in fault


@pytest.mark.parametrize("broken", [{"tls.key": "eA=="}, {"tls.crt": "eA=="}, {}])
async def test_a_damaged_generated_secret_is_replaced(
    store: Store, secrets: CertificateSecrets, broken: dict[str, str]
) -> None:
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    at = store.objects[f"{ROOT}/pool-bookie-tls"]
    at["data"] = {**at["data"], **broken} if broken else {}
    await CertificateSecrets(cast(Kube, store)).ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    assert issuing.is_signed_by(store.facts("pool-bookie-tls"), store.facts("quire-ca"))


async def test_labels_and_annotations_of_other_clients_stay(store: Store, secrets: CertificateSecrets) -> None:
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    metadata = store.objects[f"{ROOT}/pool-bookie-tls"]["metadata"]
    metadata["labels"]["team"], metadata["annotations"] = "storage", {"note": "x"}
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S + 60 * DAY_S)
    metadata = store.objects[f"{ROOT}/pool-bookie-tls"]["metadata"]
    assert (metadata["labels"]["team"], metadata["annotations"]) == ("storage", {"note": "x"})
    assert store.facts("pool-bookie-tls").begins_s == NOW_S + 60 * DAY_S


async def test_every_certificate_is_trusted_by_peers_with_week_old_authorities(
    store: Store, secrets: CertificateSecrets
) -> None:
    """Simulates two authority lifetimes in steps of six days: no certificate expires, and each is trusted by peers
    with an older `ca.crt`."""
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    history: list[tuple[float, bytes]] = []
    signers = set()
    at_s = NOW_S
    while at_s < NOW_S + 2 * AUTHORITY_LIFE_S:
        await secrets.ensure("prod", "pool-bookie-tls", POOL, at_s)
        leaf, trusted = store.facts("pool-bookie-tls"), store.data("pool-bookie-tls")["ca.crt"]
        assert leaf.ends_s > at_s + 29 * DAY_S
        history = [(since_s, former) for since_s, former in history if since_s > at_s - TRUST_FIRST_S]
        for _, former in [*history, (at_s, trusted)]:
            known = [issuing.facts(each) for each in issuing.bundle(former)]
            assert any(issuing.is_signed_by(leaf, each) and each.ends_s > leaf.ends_s for each in known)
        history.append((at_s, trusted))
        signers.add(store.data("quire-ca")["tls.crt"])
        assert all(each.ends_s > at_s for each in store.trusted("pool-bookie-tls"))
        at_s += 6 * DAY_S
    assert len(signers) == 3


async def test_a_lost_write_is_repeated_in_the_next_reconciliation(store: Store, secrets: CertificateSecrets) -> None:
    for lost in (1, 1):
        store.lost = lost
        with pytest.raises(UnreachableError):
            await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    await secrets.ensure("prod", "pool-bookie-tls", POOL, NOW_S)
    assert issuing.is_signed_by(store.facts("pool-bookie-tls"), store.facts("quire-ca"))


async def test_resources_with_their_own_secret_or_without_tls_get_none(
    store: Store, secrets: CertificateSecrets
) -> None:
    for tls in ({"mode": "Disabled"}, {"secretName": "own"}):
        assert await keep_bookie(secrets, bookie(tls=tls), NOW_S) is None
        assert await keep_managed_ledger(secrets, managed_ledger(brokers={"tls": tls}), NOW_S) is None
    assert store.asked == []
    assert await keep_bookie(secrets, bookie(tls={"mode": "Offered"}), NOW_S) is None
    assert await keep_managed_ledger(secrets, managed_ledger(), NOW_S) is None
    owners = store.objects[f"{ROOT}/pool-bookie-tls"]["metadata"]["ownerReferences"]
    assert [(owner["kind"], owner["name"]) for owner in owners] == [("Bookie", "pool")]
    assert f"{ROOT}/orders-broker-tls" in store.objects


async def test_a_recreated_resource_becomes_the_owner_of_the_secret(store: Store, secrets: CertificateSecrets) -> None:
    await keep_bookie(secrets, bookie(), NOW_S)
    key = store.data("pool-bookie-tls")["tls.key"]
    again = bookie().model_copy(update={"metadata": {"name": "pool", "namespace": "prod", "uid": "9"}})
    await keep_bookie(secrets, again, NOW_S + KEPT_S)
    owners = store.objects[f"{ROOT}/pool-bookie-tls"]["metadata"]["ownerReferences"]
    assert [each["uid"] for each in owners] == ["9"]
    assert store.data("pool-bookie-tls")["tls.key"] == key


async def test_a_resource_that_is_being_deleted_gets_no_certificate(store: Store, secrets: CertificateSecrets) -> None:
    leaving = {"name": "pool", "namespace": "prod", "uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    await keep_bookie(secrets, bookie(), NOW_S)
    store.objects.clear()
    assert await keep_bookie(secrets, bookie().model_copy(update={"metadata": leaving}), NOW_S) is None
    assert store.objects == {}
    await keep_bookie(secrets, bookie(), NOW_S)
    assert f"{ROOT}/pool-bookie-tls" in store.objects


async def test_etcd_has_a_separate_authority_and_client_secrets_in_the_given_namespaces(
    store: Store, secrets: CertificateSecrets
) -> None:
    task = asyncio.create_task(keep_etcd(secrets, "quire-etcd", "prod", ("apps",), lambda: NOW_S))
    async with asyncio.timeout(60):
        await store.has_four.wait()
    task.cancel()
    apps = "/api/v1/namespaces/apps/secrets/quire-etcd-client"
    assert set(store.objects) == {f"{ROOT}/quire-etcd-{part}" for part in ("ca", "tls", "client")} | {apps}
    assert store.facts("quire-etcd-tls").subject == etcd_subject("quire-etcd", "prod")
    assert store.objects[apps]["data"]["ca.crt"] == store.objects[f"{ROOT}/quire-etcd-ca"]["data"]["ca.crt"]


def test_names_in_certificates_of_resources() -> None:
    pool = bookie()
    assert {"pool-bookie", "pool-bookie.prod.svc", "*.pool-bookie.prod.svc"} <= set(bookie_subject(pool).dns)
    assert "pool-autorecovery.prod.svc" in bookie_subject(pool).dns
    listeners = [{"name": "a", "host": "mq.example"}, {"name": "b", "host": "192.0.2.7"}]
    found = broker_subject(managed_ledger(brokers={"advertisedListeners": listeners}))
    assert {"orders-broker.prod.svc", "*.orders-brokers.prod.svc", "mq.example"} <= set(found.dns)
    assert found.addresses == ("127.0.0.1", "192.0.2.7")
    proxy = managed_ledger(proxy={"hosts": ["pulsar.example", "192.0.2.8"]})
    assert proxy.spec.proxy is not None
    of_proxies = proxy_subject(proxy, proxy.spec.proxy)
    assert {"orders-proxy.prod.svc", "pulsar.example"} <= set(of_proxies.dns)
    assert of_proxies.addresses == ("127.0.0.1", "192.0.2.8")


async def test_proxies_have_a_certificate_of_their_own(store: Store, secrets: CertificateSecrets) -> None:
    assert await keep_managed_ledger(secrets, managed_ledger(proxy={}), NOW_S) is None
    assert {f"{ROOT}/orders-broker-tls", f"{ROOT}/orders-proxy-tls"} <= store.objects.keys()
    assert await keep_managed_ledger(secrets, managed_ledger(proxy={"tls": {"secretName": "own"}}), NOW_S) is None
    assert f"{ROOT}/own" not in store.objects
