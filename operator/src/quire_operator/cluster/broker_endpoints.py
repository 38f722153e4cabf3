"""The brokers of a ManagedLedger and how to reach them, and what one of them answers. Reads only."""

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.builders import Manifest
from quire_operator.builders.broker import broker_host
from quire_operator.builders.settings import broker_ports
from quire_operator.cluster.broker_rest import BrokerEndpoint
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.readiness import is_ready
from quire_operator.cluster.tls_trust import operator_token, trust_of
from quire_operator.errors import UnreachableError

T = TypeVar("T")


async def broker_endpoints(kube: Kube, resource: ManagedLedger, pods: Iterable[Manifest]) -> list[BrokerEndpoint]:
    """Return the endpoints of an effective resource, those of ready pods first.

    If TLS is configured, the token is never sent in plaintext.
    """
    meta, tls, token = resource.meta, None, None
    wanted, authentication = resource.spec.brokers.tls, resource.spec.brokers.authentication
    if "https" in broker_ports(resource.spec.brokers) and wanted is not None and wanted.secret_name is not None:
        tls = await trust_of(kube, meta.namespace, wanted.secret_name)
        if tls is None:
            return []  # without that Secret the brokers do not start either
    if authentication is not None:
        token, _ = await operator_token(kube, meta.namespace, authentication.token_key_secret)
    hosts: dict[str, str] = {}
    for pod in sorted(pods, key=lambda pod: not is_ready(pod)):
        host = pod.get("status", {}).get("podIP")
        if host is not None and "deletionTimestamp" not in pod["metadata"]:
            hosts[broker_host(meta, pod["metadata"]["name"])] = host
    return [BrokerEndpoint(host, tls, token, name, hosts) for name, host in hosts.items()]


async def first_answer(
    endpoints: Iterable[BrokerEndpoint], ask: Callable[[BrokerEndpoint], Awaitable[T]]
) -> tuple[T, BrokerEndpoint] | None:
    """Return what the first broker that responds answers, and its endpoint; None if none does. Raises RefusedError."""
    for endpoint in endpoints:
        try:
            return await ask(endpoint), endpoint
        except UnreachableError:
            continue
    return None
