"""Metrics of the guard of a bookie's port: TLS, authentication, refused connections. BookKeeper has no such names."""

from collections.abc import Mapping

from quire_bookie.exposition.families import Families, Names
from quire_bookie.server.security.guard import Guard

SECURITY: Names = {
    "connections_refused": ("quire_bookie_connections_refused", "counter", "connections above a limit, closed at once"),
    "tls_connections_open": ("quire_bookie_tls_connections", "gauge", "open connections with TLS"),
    "tls_handshakes": ("quire_bookie_tls_handshakes", "counter", "TLS handshakes started"),
    "tls_handshakes_failed": ("quire_bookie_tls_handshakes_failed", "counter", "TLS handshakes that failed"),
    "authenticated": ("quire_bookie_authentications", "counter", "authenticated connections"),
    "authentication_failures": ("quire_bookie_authentication_failures", "counter", "tokens, roles or plugins refused"),
    "requests_unauthorized": ("quire_bookie_requests_unauthorized", "counter", "requests before authentication"),
    "unauthenticated_timeouts": (
        "quire_bookie_unauthenticated_timeouts",
        "counter",
        "connections closed because they did not authenticate in time",
    ),
    "withdrawn": ("quire_bookie_tokens_withdrawn", "counter", "connections closed because their token was withdrawn"),
}
TOKENS: Names = {
    "loads": ("quire_bookie_token_file_loads", "counter", "loads of the file with the token key or list"),
    "load_failures": ("quire_bookie_token_file_load_failures", "counter", "failed loads of the token file"),
}
TLS: Names = {
    "loads": ("quire_bookie_tls_certificate_loads", "counter", "loads of the certificate files"),
    "load_failures": ("quire_bookie_tls_certificate_load_failures", "counter", "failed loads of new certificate files"),
}


def add_security(families: Families, guard: Guard, labels: Mapping[str, str]) -> None:
    """Add all metrics; those of the certificate only if there is one."""
    families.add_stats(guard.stats, SECURITY, labels)
    tls = guard.stats.tls
    if tls is not None:
        families.add_stats(tls, TLS, labels)
        name, text = "quire_bookie_tls_certificate_end_seconds", "when the certificate expires, in s since the epoch"
        families.add(name, "gauge", text, tls.certificate_end_ms / 1000, labels)
    if guard.token_stats is not None:
        families.add_stats(guard.token_stats, TOKENS, labels)
