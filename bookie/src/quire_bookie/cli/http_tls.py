"""Creates the TLS context of an admin HTTP port from its settings. Reads the files."""

from functools import partial

from quire_bookie import limits
from quire_bookie.config.http_server import HttpServerConfig
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.tls import ServedContext, TlsContext, server_context
from quire_bookie.settings.declared import absolute
from quire_bookie.settings.tls import TlsFiles


async def http_tls(config: HttpServerConfig) -> ServedContext | None:
    """Load the certificate. None: the port serves plaintext. ConfigError names the file that is wrong."""
    if not config.http_tls:
        return None
    certificate, key = absolute(config.http_certificate_path), absolute(config.http_key_path)
    files = TlsFiles(certificate, key or certificate, trust=absolute(config.http_trust_path))
    make = partial(server_context, client_certificates=bool(files.trust))
    served = ServedContext(TlsContext(files, make, limits.TLS_REFRESH_S, SystemClock()))
    await served.open()
    return served
