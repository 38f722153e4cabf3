"""Creates the cluster, tenants and namespaces of a new cluster; the first broker does this.

Each node is created only if it is missing, so any number of brokers may do this at the same time, and an
existing cluster is not changed.
"""

from collections.abc import Coroutine
from typing import Any

from quire_broker.errors import ConflictError
from quire_broker.limits import DEFAULT_NAMESPACE_BUNDLES
from quire_broker.names import NamespaceName
from quire_broker.ownership.owners import BrokerUrls
from quire_broker.policies.bundles import Bundles
from quire_broker.policies.store import Json, PolicyStore

_CLIENT_DEFAULTS: Json = {
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
    "brokerClientTlsTrustStoreType": "JKS",
    "brokerClientTlsKeyStoreType": "JKS",
    "brokerClientSslFactoryPlugin": "org.apache.pulsar.common.util.DefaultPulsarSslFactory",
}
PUBLIC_DEFAULT = NamespaceName("public", "default")
SYSTEM = NamespaceName("pulsar", "system")


async def initialise_cluster(store: PolicyStore, urls: BrokerUrls) -> None:
    """Create the nodes of a new cluster. `urls`: the addresses of its first broker."""
    found = {
        "serviceUrl": urls.http,
        "serviceUrlTls": urls.http_tls,
        "brokerServiceUrl": urls.native,
        "brokerServiceUrlTls": urls.native_tls,
    }
    data = {**{key: url for key, url in found.items() if url}, **_CLIENT_DEFAULTS}
    if store.cluster not in await store.clusters():
        await _unless_there(store.create_cluster(store.cluster, data))
        await _unless_there(store.create_cluster("global", dict(_CLIENT_DEFAULTS)))
    tenants = await store.tenants()
    for namespace in (PUBLIC_DEFAULT, SYSTEM):
        if namespace.tenant not in tenants:
            info: Json = {"adminRoles": [], "allowedClusters": [store.cluster]}
            bundles = Bundles.even(DEFAULT_NAMESPACE_BUNDLES)
            await _unless_there(store.create_tenant_with_namespace(namespace, info, bundles))


async def _unless_there(creation: Coroutine[Any, Any, None]) -> None:
    try:
        await creation
    except ConflictError:
        return
