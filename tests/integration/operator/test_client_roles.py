"""Roles as resources: the stock client uses the token of the Secret on a broker that checks it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest

from quire_operator.api.client_role import ClientRole
from quire_operator.builders.broker import service_url
from tests.integration.operator.declared_stack import DeclaredStack, running_stack
from tests.integration.operator.kube_api import KubeApi
from tests.support.etcd_server import EtcdServer
from tests.support.quire_pods import HOST

pulsar = pytest.importorskip("pulsar")

pytestmark = pytest.mark.slow
TOPIC = "persistent://shop/orders/placed"
NAMESPACE = "/admin/v2/namespaces/shop/orders"
BOTH = ["Produce", "Consume"]


@pytest.fixture
async def stack(
    kubeconfig: Path, kube: KubeApi, namespace: str, etcd_server: EtcdServer, tmp_path: Path
) -> AsyncIterator[DeclaredStack]:
    async with running_stack(kubeconfig, kube, namespace, etcd_server.endpoint, tmp_path, secured=True) as found:
        yield found


def exchange(stack: DeclaredStack, secret: str, text: bytes) -> bytes:
    """Send and receive a message with the token in a Secret. Raises what the client raises."""
    client: Any = pulsar.Client(
        f"pulsar://{HOST}:{stack.port}",
        authentication=pulsar.AuthenticationToken(stack.secret(secret)["token"].decode()),
        operation_timeout_seconds=20,
        listener_name="test",
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        consumer = client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)
        client.create_producer(TOPIC).send(text)
        message = consumer.receive(20_000)
        consumer.acknowledge(message)
        return bytes(message.data())
    finally:
        client.close()


async def test_a_client_works_with_the_token_and_not_without_the_permission(stack: DeclaredStack) -> None:
    stack.declare("Topic", "placed")
    await stack.settle("Topic", "placed")
    stack.declare("ClientRole", "billing", permissions=[{"namespace": "shop/orders", "actions": BOTH}])
    await stack.settle("ClientRole", "billing")
    assert stack.condition("ClientRole", "billing") == ("True", "InSync")
    status = stack.status("ClientRole", "billing")
    assert (status["permissions"], status["tokenSecret"]) == (1, "billing-token")
    secret = stack.secret("billing-token")
    assert secret["serviceUrl"].startswith(b"pulsar://orders-broker.")
    assert await asyncio.to_thread(exchange, stack, "billing-token", b"one") == b"one"

    stack.declare("ClientRole", "stranger")
    await stack.settle("ClientRole", "stranger")
    with pytest.raises(pulsar.AuthorizationError):
        await asyncio.to_thread(exchange, stack, "stranger-token", b"two")

    stack.change("ClientRole", "billing", permissions=[{"topic": "shop/orders/placed", "actions": BOTH}])
    await stack.settle("ClientRole", "billing")
    assert await stack.rest("GET", f"{NAMESPACE}/permissions") == {}, "undeclared permissions are revoked"
    assert await asyncio.to_thread(exchange, stack, "billing-token", b"three") == b"three"

    await stack.rest("DELETE", "/admin/v2/persistent/shop/orders/placed/permissions/billing")
    await stack.settle("ClientRole", "billing")
    reverted = stack.status("ClientRole", "billing")["reverted"]["what"]
    assert reverted == "topic shop/orders/placed: granted are none, declared are consume, produce"
    assert await asyncio.to_thread(exchange, stack, "billing-token", b"four") == b"four"

    stack.remove("ClientRole", "billing")
    await stack.settle("ClientRole", "billing")
    assert not stack.exists("ClientRole", "billing")
    assert await stack.rest("GET", "/admin/v2/persistent/shop/orders/placed/permissions") == {}
    # The Secret goes with its owner; this API server has no garbage collector, and nothing else may delete it.
    assert stack.secret("billing-token")["role"] == b"billing"


async def test_clients_get_the_url_of_the_port_that_generated_certificates_open(stack: DeclaredStack) -> None:
    role = ClientRole.model_validate(stack.declare("ClientRole", "billing"))
    found = await replace(stack.context, generated=True).ledger_of(role)
    assert found is not None
    assert service_url(found).startswith("pulsar+ssl://orders-broker."), "no other port of the Service is open"


async def test_a_token_is_renewed_and_restored_and_admins_are_added(stack: DeclaredStack) -> None:
    stack.declare("Tenant", "shop")
    await stack.settle("Tenant", "shop")
    permissions = [{"tenant": "shop", "actions": ["Admin"]}, {"namespace": "shop/orders", "actions": ["Admin"]}]
    stack.declare("ClientRole", "keeper", role="the-keeper", permissions=permissions, token={"validFor": "2h"})
    await stack.settle("ClientRole", "keeper")
    assert stack.condition("ClientRole", "keeper") == ("True", "InSync")
    assert (await stack.rest("GET", "/admin/v2/tenants/shop"))["adminRoles"] == ["the-keeper"]
    assert await stack.rest("GET", "/admin/quire/namespaces/shop/orders/admins") == ["the-keeper"]
    first = stack.secret("keeper-token")["token"]
    end_s = jwt.decode(first, options={"verify_signature": False})["exp"]
    stack.now_s = end_s - 1800.0
    await stack.settle("ClientRole", "keeper")
    second = stack.secret("keeper-token")["token"]
    assert second != first and "reverted" not in stack.status("ClientRole", "keeper")
    assert jwt.decode(second, options={"verify_signature": False})["exp"] > end_s

    secrets = f"/api/v1/namespaces/{stack.namespace}/secrets"
    stack.api.call("DELETE", f"{secrets}/keeper-token").expect()
    await stack.settle("ClientRole", "keeper")
    assert (
        stack.status("ClientRole", "keeper")["reverted"]["what"] == "Secret keeper-token has no valid token of the role"
    )
    assert stack.secret("keeper-token")["role"] == b"the-keeper"

    stack.change("Tenant", "shop", adminRoles=["ops"])
    await stack.settle("Tenant", "shop")
    await stack.settle("ClientRole", "keeper")
    assert stack.condition("ClientRole", "keeper") == ("False", "AccessDeclared")
    assert (await stack.rest("GET", "/admin/v2/tenants/shop"))["adminRoles"] == ["ops"], "no tug of war"


async def test_no_token_of_a_reserved_role_and_no_foreign_secret_is_written(stack: DeclaredStack) -> None:
    secrets = f"/api/v1/namespaces/{stack.namespace}/secrets"
    stack.api.create(secrets, {"metadata": {"name": "theirs"}, "stringData": {"token": "x"}}).expect()
    stack.declare("ClientRole", "root", role="quire-operator")
    stack.declare("ClientRole", "app", token={"secretName": "theirs"})
    stack.declare("ClientRole", "twin", role="app")
    for name, reason in (("root", "ReservedRole"), ("app", "SecretNotOurs"), ("twin", "Claimed")):
        await stack.settle("ClientRole", name)
        assert stack.condition("ClientRole", name) == ("False", reason)
    assert stack.secret("theirs") == {"token": b"x"}
    assert not stack.api.get(f"{secrets}/root-token").ok and not stack.api.get(f"{secrets}/twin-token").ok
