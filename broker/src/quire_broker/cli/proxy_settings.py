"""Maps the configuration of a proxy to its settings. Pure: starts nothing, reads no file."""

from quire_bookie.cli.bookie_settings import default_host
from quire_bookie.cli.client_security_settings import token_of
from quire_bookie.cli.connection_memory import memory_settings
from quire_bookie.env.machine import machine_memory_bytes
from quire_bookie.settings.declared import absolute
from quire_bookie.settings.tls import TlsFiles
from quire_broker.cli.access_settings import client_access_settings
from quire_broker.config.proxy import BASIC_PLUGINS, TLS_PLUGINS, TOKEN_PLUGINS, ProxyConfig
from quire_broker.proxy.proxy import ProxySettings
from quire_broker.proxy.towards_brokers import TowardsBrokers
from quire_broker.security.credentials import BASIC, CERTIFICATE, TOKEN
from quire_broker.server.ports import PortSettings
from quire_broker.settings.proxy import ProxyLimits

_METHODS = (
    dict.fromkeys(TOKEN_PLUGINS, TOKEN) | dict.fromkeys(BASIC_PLUGINS, BASIC) | dict.fromkeys(TLS_PLUGINS, CERTIFICATE)
)


def proxy_settings(config: ProxyConfig) -> ProxySettings:
    """Return the settings of `quire proxy`."""
    advertise = config.advertise or default_host(config.listen)
    return ProxySettings(
        ports=PortSettings(
            config.listen, advertise, config.port, config.port_tls, config.http_port, config.http_port_tls, "--port"
        ),
        access=client_access_settings(config, [advertise]),
        towards=_towards(config),
        forwards_credentials=config.forward_authorization_credentials,
        native=config.native_url,
        web=config.web_url,
        allowed_hosts=tuple(config.allowed_host_names),
        allowed_ports=tuple(config.allowed_target_ports),
        limits=config.part(ProxyLimits),
        memory=memory_settings(config, machine_memory_bytes()),
    )


def _towards(config: ProxyConfig) -> TowardsBrokers:
    tls = None
    if config.tls_enabled_with_broker:
        tls = TlsFiles(
            certificate=absolute(config.broker_client_certificate_file_path),
            key=absolute(config.broker_client_key_file_path),
            trust=absolute(config.broker_client_trust_certs_file_path or config.tls_trust_certs_file_path),
        )
    plugin, secret, path = config.broker_client_auth_plugin, "", ""
    if plugin in TOKEN_PLUGINS + BASIC_PLUGINS:
        secret, path = token_of(config.broker_client_auth_parameters)
    return TowardsBrokers(
        tls,
        check_host_name=config.tls_hostname_verification,
        refresh_s=float(config.tls_refresh_seconds),
        method=_METHODS.get(plugin, ""),
        secret=secret,
        secret_path=path,
    )
