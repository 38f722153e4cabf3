"""Configurations of a proxy: what they become, and which are refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from quire_bookie.env.open_files import Shares, open_files_max
from quire_broker.cli.open_file_shares import fit_proxy
from quire_broker.cli.proxy_settings import proxy_settings
from quire_broker.config.proxy import ProxyConfig

TOKEN = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
TLS = "org.apache.pulsar.client.impl.auth.AuthenticationTls"


def config(**keys: Any) -> ProxyConfig:
    return ProxyConfig(**keys)


def test_the_defaults_permit_only_the_ports_of_brokers_and_check_their_certificates() -> None:
    found = proxy_settings(config())
    assert found.allowed_ports == ("6650", "6651") and not found.allowed_hosts
    assert found.towards.tls is None and found.towards.check_host_name
    assert (found.ports.port, found.ports.port_tls, found.ports.http_port) == (6650, None, 8080)
    assert not found.forwards_credentials


def test_the_keys_of_pulsars_proxy_are_read() -> None:
    found = proxy_settings(
        config(
            brokerServiceURL="pulsar://a:1",
            brokerServiceURLTLS="pulsar+ssl://a:2,b:2",
            brokerWebServiceURLTLS="https://a:3",
            tlsEnabledWithBroker=True,
            brokerClientTrustCertsFilePath="/ca.pem",
            brokerClientAuthenticationPlugin=TOKEN,
            brokerClientAuthenticationParameters="file:///token",
            forwardAuthorizationCredentials=True,
            brokerProxyAllowedHostNames="*.example.com,c",
            brokerProxyAllowedTargetPorts="*",
            brokerProxyConnectTimeoutMs=1500,
            maxConcurrentInboundConnections=7,
            httpProxyTimeout=2500,
            servicePort="",
            servicePortTls=0,
            tlsCertificateFilePath="/c.pem",
            tlsKeyFilePath="/k.pem",
        )
    )
    assert (found.native, found.web) == ("pulsar+ssl://a:2,b:2", "https://a:3")
    assert found.towards.tls is not None and found.towards.tls.trust == "/ca.pem"
    assert (found.towards.method, found.towards.secret, found.towards.secret_path) == ("token", "", "/token")
    assert found.forwards_credentials
    assert (found.allowed_hosts, found.allowed_ports) == (("*.example.com", "c"), ("*",))
    assert (found.limits.connect_timeout_s, found.limits.http_timeout_s) == (1.5, 2.5)
    assert (found.limits.connections_max, found.ports.port, found.ports.port_tls) == (7, None, 0)
    assert found.access.tls is not None and found.access.authentication is None


def test_a_certificate_of_the_proxy_is_its_role_if_the_plugin_says_so() -> None:
    files = {"brokerClientCertificateFilePath": "/c.pem", "brokerClientKeyFilePath": "/k.pem"}
    found = proxy_settings(config(tlsEnabledWithBroker=True, brokerClientAuthenticationPlugin=TLS, **files))
    assert found.towards.method == "tls"
    assert found.towards.tls is not None and found.towards.tls.certificate == "/c.pem"


@pytest.mark.parametrize("plugin", ["basic", "org.apache.pulsar.client.impl.auth.AuthenticationBasic"])
def test_a_password_of_the_proxy_is_given_as_to_stock_proxies_or_in_a_file(plugin: str) -> None:
    given = '{"userId": "proxy", "password": "hidden"}'
    keys = {"brokerClientAuthenticationPlugin": plugin, "brokerClientAuthenticationParameters": given}
    found = proxy_settings(config(**keys))
    assert (found.towards.method, found.towards.secret, found.towards.secret_path) == ("basic", given, "")
    assert "hidden" not in repr(found)
    found = proxy_settings(config(**(keys | {"brokerClientAuthenticationParameters": "file:///own"})))
    assert (found.towards.secret, found.towards.secret_path) == ("", "/own")


@pytest.mark.parametrize(
    "given", ["", "proxy:hidden", '{"userId": "hidden"}', '{"userId": "a:b", "password": "hidden"}']
)
def test_a_password_of_the_proxy_that_cannot_be_read_is_refused_and_not_shown(given: str) -> None:
    with pytest.raises(ValidationError) as refused:
        config(brokerClientAuthenticationPlugin="basic", brokerClientAuthenticationParameters=given)
    message = refused.value.errors()[0]["msg"]
    assert "userId" in message and "hidden" not in message


def test_hosts_of_brokers_by_a_star_are_reported_as_they_permit_none() -> None:
    assert not config(brokerProxyAllowedHostNames="a,*.example.com").doubts
    assert "brokerProxyAllowedHostNames * has no effect" in config(brokerProxyAllowedHostNames="a,*").doubts[0]


AUTHENTICATED = {
    "authenticationEnabled": True,
    "authenticationProviders": "token",
    "tokenSecretKey": "data:;base64,eA==",
}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"servicePort": ""}, "servicePort and servicePortTls are both empty"),
        ({"servicePort": 8080}, "must differ"),
        ({"servicePortTls": 6651}, "tlsCertificateFilePath"),
        ({"brokerServiceURL": "a:6650"}, "use pulsar://host:port"),
        ({"brokerServiceURL": "pulsar://a:6650", "metadataStoreUrl": "etcd://e:2379"}, "are both set"),
        ({"brokerClientAuthenticationPlugin": "kerberos"}, "unknown"),
        ({"brokerClientAuthenticationPlugin": TOKEN}, "needs the token"),
        ({"brokerClientAuthenticationPlugin": TLS}, "needs tlsEnabledWithBroker"),
        ({"brokerClientCertificateFilePath": "/c.pem"}, "give both or neither"),
        (AUTHENTICATED, "needs brokerClientAuthenticationPlugin"),
        ({"proxyBufferBytes": 100}, "greater than or equal to 8192"),
        ({"maxConcurrentLookupRequests": 0}, "greater than or equal to 1"),
    ],
)
def test_contradictions_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        config(**keys)


def test_a_secret_of_the_proxy_is_not_shown() -> None:
    found = config(brokerClientAuthenticationPlugin=TOKEN, brokerClientAuthenticationParameters="token:hidden")
    assert "hidden" not in repr(found) and "hidden" not in str(found.shown())
    assert "hidden" not in repr(proxy_settings(found))


def test_each_client_takes_two_handles() -> None:
    fitted = fit_proxy(proxy_settings(config(maxConcurrentInboundConnections=0)))
    assert fitted.limits.connections_max == Shares.of(open_files_max()).clients // 2
