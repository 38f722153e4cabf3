"""Resources as they count: with the TLS that is served and the Secrets that the operator makes. Pure."""

from quire_operator.api.bookie import Bookie
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import Tls, TlsMode, effective_tls
from quire_operator.builders.naming import BOOKIE, BROKER, ledger_password_name, tls_secret_name


def is_generated(wanted: Tls | None) -> bool:
    """The resource leaves its certificates to the operator, where that makes any."""
    return wanted is None or (wanted.mode is not TlsMode.DISABLED and wanted.secret_name is None)


def effective_bookie(resource: Bookie, generated: bool) -> Bookie:
    """`generated`: the operator makes certificates."""
    tls = effective_tls(resource.spec.tls, tls_secret_name(resource.meta.name, BOOKIE) if generated else None)
    return resource.model_copy(update={"spec": resource.spec.model_copy(update={"tls": tls})})


def effective_managed_ledger(resource: ManagedLedger, generated: bool, *, passwords: bool = False) -> ManagedLedger:
    """`generated`: the operator makes certificates; `passwords`: it makes those of ledgers."""
    spec, secret = resource.spec, tls_secret_name(resource.meta.name, BROKER)
    password = spec.brokers.ledger_password_secret or (ledger_password_name(resource.meta.name) if passwords else None)
    brokers = {
        "tls": effective_tls(spec.brokers.tls, secret if generated else None),
        "ledger_password_secret": password,
    }
    return resource.model_copy(
        update={"spec": spec.model_copy(update={"brokers": spec.brokers.model_copy(update=brokers)})}
    )
