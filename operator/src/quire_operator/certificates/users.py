"""Maintains the Secrets of resources, in their reconciliation, and of the chart's etcd, in a separate task."""

import asyncio
import logging
from collections.abc import Callable

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import Metadata
from quire_operator.builders.effective import is_generated
from quire_operator.builders.naming import BOOKIE, BROKER, PROXY, owner_reference, tls_secret_name
from quire_operator.certificates.keeping import KEPT_S, CertificateSecrets, ForeignSecretError
from quire_operator.certificates.subjects import (
    Subject,
    bookie_subject,
    broker_subject,
    etcd_client_subject,
    etcd_subject,
    proxy_subject,
)
from quire_operator.errors import OperatorError

_log = logging.getLogger("quire.operator")
RETRY_S = 2.0


async def keep_bookie(secrets: CertificateSecrets, resource: Bookie, now_s: float) -> str | None:
    """Maintain the certificates of a pool. Returns an error that an administrator must fix, or None.

    It also runs while the resource is paused, because expired certificates would stop the pods. Raises OperatorError
    for failures that a retry may fix.
    """
    if not is_generated(resource.spec.tls):
        return None
    return await _keep(secrets, "Bookie", resource.meta, BOOKIE, bookie_subject(resource), now_s)


async def keep_managed_ledger(secrets: CertificateSecrets, resource: ManagedLedger, now_s: float) -> str | None:
    """Maintain the certificates of brokers and proxies, like `keep_bookie`."""
    wanted = [(BROKER, broker_subject(resource))] if is_generated(resource.spec.brokers.tls) else []
    proxy = resource.spec.proxy
    if proxy is not None and is_generated(proxy.tls):
        wanted.append((PROXY, proxy_subject(resource, proxy)))
    faults = [await _keep(secrets, "ManagedLedger", resource.meta, part, subject, now_s) for part, subject in wanted]
    return next(filter(None, faults), None)


async def _keep(
    secrets: CertificateSecrets, kind: str, meta: Metadata, part: str, subject: Subject, now_s: float
) -> str | None:
    name = tls_secret_name(meta.name, part)
    if meta.deletion_timestamp is not None:
        secrets.forget(meta.namespace, name)
        return None
    owner = owner_reference(kind, meta)
    try:
        await secrets.ensure(meta.namespace, name, subject, now_s, owner=owner)
    except ForeignSecretError as error:
        return f"tls: {error}"
    return None


async def keep_etcd(
    secrets: CertificateSecrets,
    etcd: str,
    namespace: str,
    client_namespaces: tuple[str, ...],
    wall_s: Callable[[], float],
) -> None:
    """Maintain the certificates of the chart's etcd and its clients until cancelled.

    They have a separate authority, because any of its certificates gives full access to the metadata.
    """
    wanted = [(namespace, f"{etcd}-tls", etcd_subject(etcd, namespace))]
    places = dict.fromkeys((namespace, *client_namespaces))
    wanted += [(place, f"{etcd}-client", etcd_client_subject(place)) for place in places]
    while True:
        failed = False
        for place, name, subject in wanted:
            try:
                await secrets.ensure(place, name, subject, wall_s(), authority=(namespace, f"{etcd}-ca"))
            except OperatorError as error:
                failed = True
                _log.warning("could not maintain certificate %s/%s: %s", place, name, error)
        await asyncio.sleep(RETRY_S if failed else KEPT_S)
