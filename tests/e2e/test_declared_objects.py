"""Tenants, namespaces, topics and roles as resources: declared, changed by others, deleted. Under load."""

import base64
import os
from collections.abc import Iterator
from typing import Any

import jwt
import pytest

from tests.e2e import manifests, probes
from tests.e2e.kube import Manifest, until
from tests.e2e.release import kubectl
from tests.e2e.stack import BROKER_PODS, Stack
from tests.e2e.test_pods_and_operator import kill_operator

ADMIN = "/admin/v2"
READY_S = 180.0
REVERTED_S = 240.0
"""The operator compares every minute; its killed predecessor's lease ends first."""
GONE_S = 240.0
KINDS = ("Topic", "TopicNamespace", "Tenant", "ClientRole")
GUARDED, KEYS, CLIENT = "guarded", "guarded-keys", "guarded-client"
GUARDED_NAMESPACE = "shop/guarded"
TOPIC = f"persistent://{GUARDED_NAMESPACE}/placed"
EXCHANGE = """
import sys, pulsar
folder, topic, text = sys.argv[1:]
client = pulsar.Client(
    open(f"{folder}/serviceUrl").read(),
    authentication=pulsar.AuthenticationToken(lambda: open(f"{folder}/token").read()),
    tls_trust_certs_file_path="/authority/ca.crt",
    operation_timeout_seconds=20,
    logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
)
try:
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(topic).send(text.encode())
    message = consumer.receive(20_000)
    consumer.acknowledge(message)
    print("received", message.data().decode())
except pulsar.PulsarException as error:
    print("refused", type(error).__name__)
finally:
    client.close()
"""
"""Sends and receives a message with the token in a folder, as a client with its Secret does."""


def test_declared_objects_stay_as_declared_and_their_deletion_follows_the_policy(stack: Stack) -> None:
    _declare(stack, "Tenant", "lab", adminRoles=["ops"], deletionPolicy="Delete")
    _declare(
        stack,
        "TopicNamespace",
        "trial",
        namespace="lab/trial",
        retention={"ttl": "30m"},
        autoTopicCreation=False,
        deletionPolicy="Delete",
    )
    subscriptions = [{"name": "refunds"}]
    _declare(
        stack,
        "Topic",
        "samples",
        namespace="lab/trial",
        partitions=2,
        subscriptions=subscriptions,
        deletionPolicy="Delete",
    )
    _declare(stack, "Topic", "kept")
    for resource in ("tenant/lab", "topicnamespace/trial", "topic/samples", "topic/kept"):
        _wait_until_ready(stack, resource)
    assert _admin(stack, "GET", "tenants/lab")["adminRoles"] == ["ops"]
    assert _admin(stack, "GET", "namespaces/lab/trial/messageTTL") == 1800
    assert _admin(stack, "GET", "persistent/lab/trial/samples/partitions")["partitions"] == 2
    samples = "persistent/lab/trial/samples-partition-1"
    assert _admin(stack, "GET", f"{samples}/subscriptions") == ["refunds"]

    _admin(stack, "POST", "tenants/lab", {"adminRoles": ["else"], "allowedClusters": ["quire"]})
    _admin(stack, "POST", "namespaces/lab/trial/messageTTL", 5)
    _admin(stack, "DELETE", f"{samples}/subscription/refunds")
    kill_operator(stack)
    until("the tenant is reverted", lambda: _admin(stack, "GET", "tenants/lab")["adminRoles"] == ["ops"], REVERTED_S)
    until("the TTL is reverted", lambda: _admin(stack, "GET", "namespaces/lab/trial/messageTTL") == 1800, REVERTED_S)
    until("the subscription is back", lambda: _admin(stack, "GET", f"{samples}/subscriptions"), REVERTED_S)
    for kind, name in (("Tenant", "lab"), ("TopicNamespace", "trial")):
        until(f"{name} tells", lambda it=(kind, name): _status(stack, *it).get("reverted"), READY_S)  # type: ignore[misc]
    assert "messageTTL is 5, declared is 1800" in _status(stack, "TopicNamespace", "trial")["reverted"]["what"]
    stack.goes_on()

    for kind, name in (("Tenant", "lab"), ("TopicNamespace", "trial"), ("Topic", "samples"), ("Topic", "kept")):
        stack.cluster.delete(manifests.API_VERSION, kind, name)
    until("the resources are gone", lambda: not _left(stack), GONE_S)
    assert "lab" not in _admin(stack, "GET", "tenants")
    kept = f"persistent://{manifests.PULSAR_NAMESPACE}/kept"
    assert kept in _admin(stack, "GET", f"persistent/{manifests.PULSAR_NAMESPACE}"), "a retained topic stays"
    _admin(stack, "DELETE", f"persistent/{manifests.PULSAR_NAMESPACE}/kept")
    stack.check()


@pytest.fixture
def guarded(stack: Stack) -> Iterator[Stack]:
    """A second ManagedLedger on the pool, whose brokers require tokens; its topic, and a client without its Secret."""
    key = os.urandom(32)
    pair = {"token.key": key, "operator.token": jwt.encode({"sub": "quire-operator"}, key, "HS256").encode()}
    data = {name: base64.b64encode(value).decode() for name, value in pair.items()}
    stack.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": KEYS}, "data": data})
    wanted = manifests.managed_ledger(stack.where, namespace=GUARDED_NAMESPACE)
    wanted["metadata"]["name"] = GUARDED
    wanted["spec"]["brokers"]["authentication"] = {"tokenKeySecret": KEYS}
    stack.cluster.apply(wanted)
    _wait_until_ready(stack, f"managedledger/{GUARDED}")
    _declare(stack, "Topic", "placed", GUARDED)
    yield stack
    for kind in KINDS:
        for left in stack.cluster.items(manifests.API_VERSION, kind):
            stack.cluster.delete(manifests.API_VERSION, kind, left["metadata"]["name"])
    stack.cluster.delete("v1", "Pod", CLIENT, grace_s=0)
    until("the resources are gone", lambda: not _left(stack), GONE_S)
    stack.cluster.delete(manifests.API_VERSION, "ManagedLedger", GUARDED)
    stack.wait_for_pods(BROKER_PODS, 1, GONE_S)


def test_a_client_works_with_the_secret_of_its_role_and_not_without_the_permission(guarded: Stack) -> None:
    both = ["Produce", "Consume"]
    _declare(guarded, "ClientRole", "billing", GUARDED, permissions=[{"namespace": GUARDED_NAMESPACE, "actions": both}])
    _declare(guarded, "ClientRole", "stranger", GUARDED)
    for resource in ("topic/placed", "clientrole/billing", "clientrole/stranger"):
        _wait_until_ready(guarded, resource)
    guarded.cluster.apply(_client())
    probes.wait(guarded.cluster, CLIENT)
    assert _exchange(guarded, "billing", "one") == "received one"
    assert _exchange(guarded, "stranger", "two") == "refused AuthorizationError"

    guarded.cluster.merge(manifests.API_VERSION, "ClientRole", "billing", {"spec": {"permissions": []}})
    refused = "refused AuthorizationError"
    until("the permission is revoked", lambda: _exchange(guarded, "billing", "three") == refused, READY_S)
    on_topic = [{"topic": f"{GUARDED_NAMESPACE}/placed", "actions": both}]
    guarded.cluster.merge(manifests.API_VERSION, "ClientRole", "billing", {"spec": {"permissions": on_topic}})
    until("it is granted again", lambda: _exchange(guarded, "billing", "four") == "received four", READY_S)

    before = guarded.cluster.get("v1", "Secret", "billing-token")
    assert before is not None
    guarded.cluster.delete("v1", "Secret", "billing-token")
    after = until("the token is restored", lambda: guarded.cluster.get("v1", "Secret", "billing-token"), REVERTED_S)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    _wait_until_ready(guarded, "clientrole/billing")

    guarded.cluster.delete(manifests.API_VERSION, "ClientRole", "billing")
    until("the role is gone", lambda: _status(guarded, "ClientRole", "billing") == {}, GONE_S)
    until("its Secret goes with it", lambda: guarded.cluster.get("v1", "Secret", "billing-token") is None, GONE_S)
    until("its tokens are useless", lambda: _exchange(guarded, "billing", "five") == refused, READY_S)
    guarded.goes_on()
    guarded.check()


def _declare(stack: Stack, kind: str, name: str, ledger: str = manifests.LEDGER, **spec: Any) -> None:
    reference = {"managedLedgerRef": {"name": ledger}}
    manifest = {"apiVersion": manifests.API_VERSION, "kind": kind, "metadata": {"name": name}}
    stack.cluster.apply({**manifest, "spec": reference | spec})


def _wait_until_ready(stack: Stack, resource: str) -> None:
    kubectl(stack.cluster, "wait", "--for=condition=Ready", resource, f"--timeout={READY_S:.0f}s")


def _admin(stack: Stack, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the admin API of the load's broker, through the API server."""
    where = f"/api/v1/namespaces/{stack.where}/pods/https:{manifests.LEDGER}-broker-0:8443/proxy"
    return stack.cluster.api.call(method, f"{where}{ADMIN}/{path}", body).expect()


def _status(stack: Stack, kind: str, name: str) -> Manifest:
    found = stack.cluster.get(manifests.API_VERSION, kind, name) or {}
    status: Manifest = found.get("status", {})
    return status


def _left(stack: Stack) -> list[str]:
    return [
        f"{kind} {one['metadata']['name']}"
        for kind in KINDS
        for one in stack.cluster.items(manifests.API_VERSION, kind)
    ]


def _client() -> Manifest:
    """Return a pod with the Secrets of both roles and the authority of the brokers' certificates."""
    secrets = {"authority": f"{GUARDED}-broker-tls", "billing": "billing-token", "stranger": "stranger-token"}
    pod = probes.client(CLIENT, {})
    (container,) = pod["spec"]["containers"]
    container["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in secrets]
    authority = [{"key": "ca.crt", "path": "ca.crt"}]
    pod["spec"]["volumes"] = [
        {"name": name, "secret": {"secretName": secret} | ({"items": authority} if name == "authority" else {})}
        for name, secret in secrets.items()
    ]
    return pod


def _exchange(stack: Stack, role: str, text: str) -> str:
    """Return what the client printed last, after its log."""
    said = kubectl(stack.cluster, "exec", CLIENT, "--", "python", "-c", EXCHANGE, f"/{role}", TOPIC, text)
    return said.strip().splitlines()[-1]
