"""Tests of the stock Python client (C++ core) when a role's rights change during a connection, and of namespace admins.

One process with tokens, which checks permissions every second, serves all tests; each test has its own namespace.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.guarded import Guarded, token  # noqa: E402  after the check that there is a client
from tests.support.polling import until  # noqa: E402  after the check that there is a client

pytestmark = pytest.mark.compat

RECEIVE_MS = 20_000
GUARD_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    found = Guarded(tmp_path_factory.mktemp("guarded"))
    yield found
    found.process.close()


@pytest.fixture
def connect(broker: Guarded) -> Iterator[Callable[[str], Any]]:
    clients = []

    def make(role: str) -> Any:
        client = pulsar.Client(
            broker.process.url,
            authentication=pulsar.AuthenticationToken(token(role)),
            operation_timeout_seconds=3,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def test_revoked_permission_ends_only_its_producer_and_consumer(broker: Guarded, connect: Callable[[str], Any]) -> None:
    namespace = broker.namespace(app=["produce", "consume"], other=["produce", "consume"])
    topic = f"persistent://{namespace}/t"
    app, other = connect("app"), connect("other")
    consumers = {"app": app.subscribe(topic, "a"), "other": other.subscribe(topic, "o")}
    app.create_reader(topic, pulsar.MessageId.earliest)
    producers = {"app": app.create_producer(topic, send_timeout_millis=2000), "other": other.create_producer(topic)}
    producers["app"].send(b"before")
    broker.rest("DELETE", f"/admin/v2/namespaces/{namespace}/permissions/app")

    def stats() -> Any:
        return broker.rest("GET", f"/admin/v2/persistent/{namespace}/t/stats")

    def those() -> tuple[int, dict[str, int]]:
        found = stats()
        return len(found["publishers"]), {name: len(one["consumers"]) for name, one in found["subscriptions"].items()}

    until(lambda: those() == (1, {"a": 0, "o": 1}))
    with pytest.raises(pulsar.PulsarException):
        producers["app"].send(b"too late")
    producers["other"].send(b"after")
    received = [consumers["other"].receive(RECEIVE_MS).data() for _ in range(2)]
    assert received == [b"before", b"after"]
    assert stats()["msgInCounter"] == 2


def test_role_without_produce_permission_continues_to_consume(broker: Guarded, connect: Callable[[str], Any]) -> None:
    namespace = broker.namespace(app=["produce", "consume"])
    topic = f"persistent://{namespace}/t"
    client = connect("app")
    consumer, producer = client.subscribe(topic, "s"), client.create_producer(topic)
    producer.send(b"one")
    broker.rest("POST", f"/admin/v2/namespaces/{namespace}/permissions/app", ["consume"])
    until(lambda: not broker.rest("GET", f"/admin/v2/persistent/{namespace}/t/stats")["publishers"])
    root = connect("root").create_producer(topic)
    root.send(b"two")
    assert [consumer.receive(RECEIVE_MS).data() for _ in range(2)] == [b"one", b"two"]


def test_admin_of_a_namespace_has_all_permissions_there_and_none_elsewhere(
    broker: Guarded, connect: Callable[[str], Any]
) -> None:
    namespace, other = broker.namespace(), broker.namespace()
    admins = f"/admin/quire/namespaces/{namespace}/admins"
    broker.rest("POST", admins, ["keeper"])
    assert broker.rest("GET", admins, role="keeper") == ["keeper"]
    broker.rest("PUT", f"/admin/v2/persistent/{namespace}/t", role="keeper")
    broker.rest("POST", f"/admin/v2/namespaces/{namespace}/permissions/app", ["consume"], role="keeper")
    broker.rest("POST", f"/admin/v2/namespaces/{namespace}/messageTTL", 60, role="keeper")
    client = connect("keeper")
    consumer = client.subscribe(f"persistent://{namespace}/t", "s")
    client.create_producer(f"persistent://{namespace}/t").send(b"mine")
    assert consumer.receive(RECEIVE_MS).data() == b"mine"
    for method, path, body in (
        ("POST", admins, ["keeper", "friend"]),
        ("DELETE", f"/admin/v2/namespaces/{namespace}", None),
        ("PUT", "/admin/v2/namespaces/public/new", None),
        ("GET", "/admin/v2/namespaces/public", None),
        ("GET", f"/admin/v2/namespaces/{other}", None),
        ("PUT", f"/admin/v2/persistent/{other}/t", None),
        ("GET", "/admin/v2/tenants", None),
    ):
        assert broker.refused(method, path, body, role="keeper") == 403, path
    broker.rest("POST", admins, [])
    assert broker.refused("GET", admins, role="keeper") == 403
    until(lambda: not broker.rest("GET", f"/admin/v2/persistent/{namespace}/t/stats")["publishers"])


def test_only_super_users_set_the_offload_target_of_a_namespace(broker: Guarded, tmp_path: Path) -> None:
    """A broker connects to any configured folder or endpoint with its own credentials."""
    namespace = broker.namespace()
    broker.rest("POST", f"/admin/quire/namespaces/{namespace}/admins", ["keeper"])
    path = f"/admin/v2/namespaces/{namespace}"
    policies = {"managedLedgerOffloadDriver": "quire-folder", "managedLedgerOffloadBucket": str(tmp_path)}
    assert broker.refused("POST", f"{path}/offloadPolicies", policies, role="keeper") == 403
    assert broker.rest("GET", f"{path}/offloadPolicies", role="keeper") is None
    broker.rest("POST", f"{path}/offloadPolicies", policies)
    assert broker.refused("DELETE", f"{path}/removeOffloadPolicies", role="keeper") == 403
    assert broker.rest("GET", f"{path}/offloadPolicies", role="keeper") == policies
    broker.rest("PUT", f"{path}/offloadThreshold", 1 << 30, role="keeper")

    topic = f"/admin/v2/persistent/{namespace}/t"
    broker.rest("PUT", topic, role="keeper")
    attempt = {"ledgerId": 999_999, "driver": "quire-folder", "properties": {"bucket": f"{tmp_path}/other"}}
    assert broker.refused("POST", f"{topic}/offload/begin", attempt, role="keeper") == 403
    assert broker.refused("POST", f"{topic}/offload/begin", attempt, role="root") == 409  # the ledger does not exist
    attempt["properties"] = {"bucket": str(tmp_path)}
    assert broker.refused("POST", f"{topic}/offload/begin", attempt, role="keeper") == 409

    tenant = {"adminRoles": ["landlord"], "allowedClusters": ["standalone"]}
    broker.rest("PUT", "/admin/v2/tenants/let", tenant)
    made = "/admin/v2/namespaces/let/n"
    assert broker.refused("PUT", made, {"offload_policies": policies}, role="landlord") == 403
    broker.rest("PUT", made, role="landlord")
