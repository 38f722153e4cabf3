"""Defines the subjects and names of certificates. Pure.

Pods are covered by a wildcard over their headless Service, so that additional ones need no new certificate.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.proxy_spec import Proxy
from quire_operator.builders.broker import HEADLESS
from quire_operator.builders.naming import AUTO_RECOVERY, BOOKIE, BROKER, PROXY, child_name

CLUSTER_DOMAIN = "cluster.local"
ETCD, ETCD_CLIENT = "etcd", "etcd-client"


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject, names and purpose of a certificate."""

    common_name: str
    unit: str
    """OU: the role of a client, which a bookie compares with `authorizedRoles`."""
    dns: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    """IP addresses."""
    server: bool = True
    """It also authenticates a server. False: only a client."""


def service_names(service: str, namespace: str, *, pods: bool = False) -> list[str]:
    """Return the names of a Service, from short to fully qualified; with `pods` also those of its pods."""
    longer = [f"{service}.{namespace}", f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.{CLUSTER_DOMAIN}"]
    return [service, *longer] + ([f"*.{name}" for name in (service, *longer)] if pods else [])


def bookie_subject(resource: Bookie) -> Subject:
    """Return the subject for the bookies of a pool and its auto-recovery."""
    name, namespace = resource.meta.name, resource.meta.namespace
    pool = child_name(name, BOOKIE)
    names = service_names(pool, namespace, pods=True) + service_names(child_name(name, AUTO_RECOVERY), namespace)
    return Subject(pool, BOOKIE, (*names, "localhost"), ("127.0.0.1",))


def broker_subject(resource: ManagedLedger) -> Subject:
    """Return the subject for the brokers of a namespace, including their addresses outside the cluster."""
    name, namespace = resource.meta.name, resource.meta.namespace
    names = service_names(child_name(name, BROKER), namespace)
    names += service_names(child_name(name, HEADLESS), namespace, pods=True)
    external = {row.host for row in resource.status.external if row.host is not None}
    hosts = {listener.host for listener in resource.spec.brokers.advertised_listeners} | external
    return _subject(child_name(name, BROKER), BROKER, names, hosts)


def proxy_subject(resource: ManagedLedger, proxy: Proxy) -> Subject:
    """Return the subject for the proxies of a namespace, including the declared hosts of clients outside."""
    service = child_name(resource.meta.name, PROXY)
    return _subject(service, PROXY, service_names(service, resource.meta.namespace), proxy.hosts)


def _subject(common_name: str, unit: str, names: list[str], hosts: Iterable[str]) -> Subject:
    """Return the subject for names of Services and further hosts, which may be addresses."""
    addresses = [host for host in sorted(hosts) if _is_address(host)]
    further = [host for host in sorted(hosts) if host not in addresses]
    return Subject(common_name, unit, (*names, *further, "localhost"), ("127.0.0.1", *addresses))


def etcd_subject(name: str, namespace: str) -> Subject:
    """Return the subject for the members of the chart's etcd, which check each other's address against its names."""
    names = service_names(name, namespace) + service_names(f"{name}-members", namespace, pods=True)
    return Subject(name, ETCD, (*names, "localhost"), ("127.0.0.1",))


def etcd_client_subject(namespace: str) -> Subject:
    """Return the subject for clients of etcd. It has no names: etcd would compare them with the client's address."""
    return Subject(f"quire.{namespace}", ETCD_CLIENT, server=False)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
