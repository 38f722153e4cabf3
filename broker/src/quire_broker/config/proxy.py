"""The settings of `quire proxy`, under the key names of Pulsar's proxy where they exist."""

from collections.abc import Iterable
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, model_validator

from quire_bookie.config.connections import ConnectionMemoryConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.roles import TextList
from quire_bookie.config.sources import SECRET
from quire_broker.config.access import ClientAccessConfig, OptionalPort
from quire_broker.config.proxy_without_effect import PROXY_REASONS
from quire_broker.limits import SESSION_TIMEOUT_S
from quire_broker.proxy.targets import ANY, addresses_of
from quire_broker.proxy.towards_brokers import credentials_in
from quire_broker.settings.proxy import ProxyLimits

TOKEN_PLUGINS = ("org.apache.pulsar.client.impl.auth.AuthenticationToken", "token")
BASIC_PLUGINS = ("org.apache.pulsar.client.impl.auth.AuthenticationBasic", "basic")
TLS_PLUGINS = ("org.apache.pulsar.client.impl.auth.AuthenticationTls", "tls")
NO_PLUGINS = ("", "org.apache.pulsar.client.impl.auth.AuthenticationDisabled")


def _addresses(text: str) -> str:
    """Validate the text and return it unchanged."""
    addresses_of(text)
    return text


BrokerAddresses = Annotated[str, AfterValidator(_addresses)]


class ProxyConfig(ClientAccessConfig, MetadataAccessConfig, ConnectionMemoryConfig):
    """Settings of a proxy."""

    SETTINGS: ClassVar[tuple[type, ...]] = (ProxyLimits,)

    port: OptionalPort = Field(
        6650, alias="servicePort", description="port of the Pulsar protocol; empty: none; 0: a free one"
    )
    port_tls: OptionalPort = Field(
        None, alias="servicePortTls", description="port of the Pulsar protocol over TLS; empty: none"
    )
    http_port: OptionalPort = Field(
        8080, alias="webServicePort", description="port of REST, health and metrics; empty: none; 0: a free one"
    )
    listen: str = Field("0.0.0.0", alias="bindAddress", description="address to listen on; 0.0.0.0: all")
    advertise: str = Field(
        "", alias="advertisedAddress", description="name of this proxy; default: bindAddress, else the host name"
    )
    metadata: str = Field(
        "", alias="metadataStoreUrl", description="etcd://host:port,host:port: where the brokers are registered"
    )
    metadata_session_timeout_ms: int = Field(
        int(SESSION_TIMEOUT_S * 1000),
        alias="metadataStoreSessionTimeoutMillis",
        ge=2000,
        description="time after which a silent metadata store counts as lost, in ms",
    )
    broker_service_url: BrokerAddresses = Field(
        "",
        alias="brokerServiceURL",
        description="pulsar://host:port,host:port of brokers, instead of metadataStoreUrl",
    )
    broker_service_url_tls: BrokerAddresses = Field(
        "", alias="brokerServiceURLTLS", description="the same with pulsar+ssl://, for tlsEnabledWithBroker"
    )
    broker_web_service_url: BrokerAddresses = Field(
        "", alias="brokerWebServiceURL", description="http://host:port,host:port of these brokers"
    )
    broker_web_service_url_tls: BrokerAddresses = Field(
        "", alias="brokerWebServiceURLTLS", description="the same with https://, for tlsEnabledWithBroker"
    )
    allowed_host_names: TextList = Field(
        [],
        alias="brokerProxyAllowedHostNames",
        description="hosts of brokers besides registered ones, to which clients may connect and brokers may redirect "
        "HTTP: a name, or *.example.com",
    )
    allowed_target_ports: TextList = Field(
        ["6650", "6651"],
        alias="brokerProxyAllowedTargetPorts",
        description="ports of brokers to which clients may connect; *: all",
    )
    tls_enabled_with_broker: bool = Field(
        False, alias="tlsEnabledWithBroker", description="connect to the ports of brokers with TLS"
    )
    tls_hostname_verification: bool = Field(
        True,
        alias="tlsHostnameVerificationEnabled",
        description="require that a broker's certificate is for its address",
    )
    broker_client_certificate_file_path: str = Field(
        "", alias="brokerClientCertificateFilePath", description="the proxy's certificate for brokers, PEM"
    )
    broker_client_key_file_path: str = Field(
        "", alias="brokerClientKeyFilePath", description="the private key of that certificate, PEM"
    )
    broker_client_auth_plugin: str = Field(
        "",
        alias="brokerClientAuthenticationPlugin",
        description="how the proxy authenticates to brokers: AuthenticationToken, AuthenticationBasic or "
        "AuthenticationTls with Pulsar's package, or token, basic, tls; empty: not at all",
    )
    broker_client_auth_parameters: str = Field(
        "",
        alias="brokerClientAuthenticationParameters",
        description="its token: file:///path (read for each connection) or token:<the token>; for basic the same file "
        'or text with {"userId": "...", "password": "..."}',
        json_schema_extra=SECRET,
    )
    forward_authorization_credentials: bool = Field(
        False,
        alias="forwardAuthorizationCredentials",
        description="pass the tokens of clients on to brokers, which authenticateOriginalAuthData requires there",
    )

    @classmethod
    def without_effect(cls, keys: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return a line for each reason why keys of stock proxies have no effect, and the keys that are unknown."""
        return PROXY_REASONS.reports(keys)

    @property
    def doubts(self) -> list[str]:
        """Hosts that are not used, as a proxy that connects everywhere would be an open relay."""
        if ANY not in self.allowed_host_names:
            return super().doubts
        return [
            *super().doubts,
            "brokerProxyAllowedHostNames * has no effect: registered brokers are permitted always; name the others",
        ]

    @property
    def native_port_tls(self) -> int | None:
        """The port of the Pulsar protocol with TLS."""
        return self.port_tls

    @property
    def native_url(self) -> str:
        """The configured addresses of brokers, of the kind that is used."""
        return self.broker_service_url_tls if self.tls_enabled_with_broker else self.broker_service_url

    @property
    def web_url(self) -> str:
        """The same of their REST."""
        return self.broker_web_service_url_tls if self.tls_enabled_with_broker else self.broker_web_service_url

    @model_validator(mode="after")
    def _ports_fit(self) -> "ProxyConfig":
        if self.port is None and self.port_tls is None:
            raise ValueError("servicePort and servicePortTls are both empty: give one of them")
        given = [p for p in (self.port, self.port_tls, self.http_port, self.http_port_tls) if p]
        if len(set(given)) < len(given):
            raise ValueError("servicePort, servicePortTls, webServicePort and webServicePortTls must differ, or be 0")
        return self

    @model_validator(mode="after")
    def _brokers_are_named_once(self) -> "ProxyConfig":
        tls = "TLS" if self.tls_enabled_with_broker else ""
        if self.metadata and self.native_url:
            raise ValueError(
                f"metadataStoreUrl and brokerServiceURL{tls} are both set; give the one that names the brokers"
            )
        return self

    @model_validator(mode="after")
    def _proves_itself(self) -> "ProxyConfig":
        plugin = self.broker_client_auth_plugin
        if plugin not in (*NO_PLUGINS, *TOKEN_PLUGINS, *BASIC_PLUGINS, *TLS_PLUGINS):
            raise ValueError(f"brokerClientAuthenticationPlugin {plugin}: unknown; use {TOKEN_PLUGINS[0]}")
        if plugin in TOKEN_PLUGINS and not self.broker_client_auth_parameters:
            raise ValueError(
                f"brokerClientAuthenticationPlugin {plugin} needs the token: set brokerClientAuthenticationParameters "
                "to file:///path/of/the/token"
            )
        if plugin in BASIC_PLUGINS and not self.broker_client_auth_parameters.startswith("file:"):
            try:
                credentials_in(self.broker_client_auth_parameters)
            except ValueError as error:
                raise ValueError(
                    f"brokerClientAuthenticationParameters of {plugin}: {error}; or file:///path of a file with it"
                ) from None
        own = (self.broker_client_certificate_file_path, self.broker_client_key_file_path)
        if any(own) and not all(own):
            raise ValueError("brokerClientCertificateFilePath and brokerClientKeyFilePath: give both or neither")
        if plugin in TLS_PLUGINS and not (all(own) and self.tls_enabled_with_broker):
            raise ValueError(
                f"brokerClientAuthenticationPlugin {plugin} needs tlsEnabledWithBroker, "
                "brokerClientCertificateFilePath and brokerClientKeyFilePath"
            )
        if self.authentication_enabled and plugin in NO_PLUGINS:
            raise ValueError(
                "authenticationEnabled needs brokerClientAuthenticationPlugin: brokers know clients only by the name "
                "that an authenticated proxy gives them"
            )
        return self
