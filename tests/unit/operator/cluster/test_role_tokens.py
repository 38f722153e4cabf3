"""The Secrets with tokens of roles, on a fake API server: a broker accepts the tokens, and foreign Secrets stay."""

import base64
from typing import Any, cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from quire_bookie.env.clock import SystemClock
from quire_bookie.tokens import checks
from quire_operator.api.client_role import ClientRole
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.role_tokens import RoleTokens
from quire_operator.errors import ConflictError, RefusedError
from quire_operator.plan.actions import IssueToken
from tests.support.kube_resources import changed, declared
from tests.unit.operator.certificates.test_keeping import ROOT, Store, managed_ledger

KEY = bytes(range(200, 240))
"""No text: keys are raw bytes."""
END_S = 4_000_000_000
ISSUE = IssueToken("billing-token", "billing", END_S, "pulsar://orders-broker.prod.svc:6650")
PATH = f"{ROOT}/billing-token"
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def pem(key: Private) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.fixture
def store() -> Store:
    found = Store()
    put(found, "keys", {"token.key": KEY})
    return found


def put(store: Store, name: str, data: dict[str, bytes]) -> None:
    texts = {key: base64.b64encode(value).decode() for key, value in data.items()}
    store.objects[f"{ROOT}/{name}"] = {"metadata": {"name": name, "resourceVersion": "1"}, "data": texts}


def tokens(store: Store, authentication: dict[str, Any] | None = None, **token: Any) -> RoleTokens:
    manifest = changed(declared("ClientRole", "billing", token=token), {"metadata.namespace": "prod"})
    ledger = managed_ledger(brokers={"authentication": {"tokenKeySecret": "keys"} | (authentication or {})})
    return RoleTokens(cast(Kube, store), ClientRole.model_validate(manifest), ledger)


async def test_a_token_is_one_that_a_broker_accepts_and_goes_with_its_resource(store: Store) -> None:
    mine = tokens(store)
    assert (await mine.observe()).exists is False
    await mine.issue(ISSUE)
    data = store.data("billing-token")
    assert (data["role"], data["serviceUrl"]) == (b"billing", ISSUE.service_url.encode())
    check = checks.SignedTokens(checks.secret_of(KEY), checks.secret_algorithms(), SystemClock())
    assert check.role_of(data["token"].decode()) == "billing"
    (owner,) = store.objects[PATH]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("ClientRole", "uid-billing")
    seen = await tokens(store).observe()
    assert (seen.ours, seen.role, seen.expires_s, seen.service_url) == (True, "billing", END_S, ISSUE.service_url)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256"])
async def test_with_a_pair_the_private_key_of_another_secret_signs(store: Store, algorithm: str) -> None:
    key: Private = ec.generate_private_key(ec.SECP256R1())
    if algorithm == "RS256":
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    put(store, "pair", {"private.key": pem(key)})
    public = {"keyType": "Public", "algorithm": algorithm}
    assert "signingKeySecret" in str((await tokens(store, public).observe()).key_fault)
    mine = tokens(store, public, signingKeySecret="pair")
    assert (await mine.observe()).key_fault is None
    await mine.issue(ISSUE)
    encoded = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    verifies = checks.public_key_of(encoded, algorithm)
    check = checks.SignedTokens(verifies, checks.public_algorithm(algorithm), SystemClock())
    assert check.role_of(store.data("billing-token")["token"].decode()) == "billing"
    assert (await tokens(store, public, signingKeySecret="pair").observe()).role == "billing"


async def test_a_token_of_another_key_or_a_damaged_one_is_none(store: Store) -> None:
    mine = tokens(store)
    await mine.observe()
    await mine.issue(ISSUE)
    put(store, "keys", {"token.key": KEY[::-1]})
    seen = await tokens(store).observe()
    assert (seen.ours, seen.role, seen.expires_s) == (True, None, None)
    store.objects[PATH]["data"]["token"] = "no base64!"
    assert (await tokens(store).observe()).role is None


async def test_a_replaced_token_keeps_the_secret_and_notices_a_change_meanwhile(store: Store) -> None:
    mine = tokens(store)
    await mine.observe()
    await mine.issue(ISSUE)
    late, again = tokens(store), tokens(store)
    await late.observe()
    await again.observe()
    await again.issue(ISSUE)
    assert store.objects[PATH]["metadata"]["resourceVersion"] == "2"
    with pytest.raises(ConflictError):
        await late.issue(ISSUE)


async def test_a_secret_of_others_is_not_ours(store: Store) -> None:
    put(store, "billing-token", {"token": b"theirs"})
    seen = await tokens(store).observe()
    assert (seen.exists, seen.ours, seen.role) == (True, False, None)


@pytest.mark.parametrize(
    ("data", "words"),
    [({}, "has no key token.key"), ({"token.key": b"short"}, "has 5 bytes: a secret needs at least 32")],
)
async def test_a_key_that_cannot_sign_is_reported_without_its_content(
    store: Store, data: dict[str, bytes], words: str
) -> None:
    put(store, "keys", data)
    fault = str((await tokens(store).observe()).key_fault)
    assert words in fault and "short" not in fault


async def test_a_wrong_private_key_is_reported_without_its_content(store: Store) -> None:
    public = {"keyType": "Public", "algorithm": "RS256"}
    for content in (b"no key", pem(ec.generate_private_key(ec.SECP256R1())), KEY):
        put(store, "pair", {"private.key": content})
        fault = str((await tokens(store, public, signingKeySecret="pair").observe()).key_fault)
        assert "private.key of Secret pair is no private key of RS256" in fault


async def test_without_a_key_nothing_is_signed(store: Store) -> None:
    put(store, "keys", {})
    mine = tokens(store)
    await mine.observe()
    with pytest.raises(RefusedError, match="the key cannot sign"):
        await mine.issue(ISSUE)
    assert PATH not in store.objects
