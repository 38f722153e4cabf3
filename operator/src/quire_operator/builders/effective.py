"""Completes resources with the TLS settings in effect and the names of generated Secrets. Pure."""

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import Tls, TlsMode, effective_tls
from quire_operator.builders.naming import BOOKIE, BROKER, PROXY, ledger_password_name, tls_secret_name


def is_generated(wanted: Tls | None) -> bool:
    """Return whether the operator should generate certificates for a resource with these TLS settings."""
    return wanted is None or (wanted.mode is not TlsMode.DISABLED and wanted.secret_name is None)


def effective_bookie(resource: Bookie, generated: bool) -> Bookie:
    """Return the effective Bookie. `generated`: the operator generates certificates."""
    tls = effective_tls(resource.spec.tls, tls_secret_name(resource.meta.name, BOOKIE) if generated else None)
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"tls": tls})})


def effective_managed_ledger(resource: ManagedLedger, generated: bool, *, passwords: bool = False) -> ManagedLedger:
    """Return the effective resource. `generated`, `passwords`: the operator generates certificates, passwords."""
    spec, secret = resource.spec, tls_secret_name(resource.meta.name, BROKER)
    password = spec.brokers.ledger_password_secret or (ledger_password_name(resource.meta.name) if passwords else None)
    brokers = {
        "tls": effective_tls(spec.brokers.tls, secret if generated else None),
        "ledger_password_secret": password,
    }
    parts: dict[str, object] = {"brokers": spec.brokers.model_copy(update=brokers)}
    if spec.proxy is not None:
        secret = tls_secret_name(resource.meta.name, PROXY)
        tls = effective_tls(spec.proxy.tls, secret if generated else None)
        parts["proxy"] = spec.proxy.model_copy(update={"tls": tls})
    return resource.model_copy(update={"spec": spec.model_copy(update=parts)})
