"""Security settings under BookKeeper's and Pulsar's names, and the secrets that are never printed."""

from pathlib import Path
from typing import Any

import pytest

from quire_bookie.cli.client_security_settings import (
    client_security_settings,
    own_client_security_settings,
    require_own_token,
)
from quire_bookie.cli.main import run
from quire_bookie.cli.security_settings import security_settings
from quire_bookie.config.bookie_security import BookieSecurityConfig
from quire_bookie.config.client_security import ClientSecurityConfig
from quire_bookie.config.sources import HIDDEN, ProcessConfig, load
from quire_bookie.errors import ConfigError
from quire_bookie.settings.security import AuthKind, SecuritySettings
from quire_bookie.settings.tls import ClientSecuritySettings, TlsFiles
from quire_bookie.settings.tokens import TokenSettings

FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
ROLES = "org.apache.bookkeeper.tls.BookieAuthZFactory"
TLS = {
    "tlsProvider": "JDK",
    "tlsProviderFactoryClass": FACTORY,
    "tlsKeyStoreType": "PEM",
    "tlsKeyStore": "/keys/bookie.key",
    "tlsCertificatePath": "/keys/bookie.pem",
    "tlsTrustStore": "/keys/ca.pem",
}


def bookie(**keys: Any) -> SecuritySettings:
    """Return the settings of a bookie."""
    return security_settings(
        load(BookieSecurityConfig, flags={}, assigned=_fields(BookieSecurityConfig, keys), environment={}).config
    )


def client(**keys: Any) -> ClientSecuritySettings:
    """Return the settings of a client."""
    return client_security_settings(
        load(ClientSecurityConfig, flags={}, assigned=_fields(ClientSecurityConfig, keys), environment={}).config
    )


def _fields(model: type[ProcessConfig], keys: dict[str, Any]) -> dict[str, Any]:
    return {str(model.field_of(key)): value for key, value in keys.items()}


def test_by_default_there_are_limits_but_no_tls_and_no_authentication() -> None:
    settings = bookie()
    assert (settings.tls, settings.roles.kind, settings.roles.token) == (None, AuthKind.NONE, None)
    assert settings.limits.connections_max > 0
    assert client() == ClientSecuritySettings()


def test_bookkeepers_tls_keys_are_accepted() -> None:
    settings = bookie(
        **TLS, tlsClientAuthentication="true", tlsCertFilesRefreshDurationSeconds="60", tlsEnabledProtocols="TLSv1.3"
    )
    assert settings.tls is not None
    assert settings.tls.files == TlsFiles(
        "/keys/bookie.pem", "/keys/bookie.key", trust="/keys/ca.pem", protocols=("TLSv1.3",)
    )
    assert (settings.tls.client_certificates, settings.tls.required, settings.tls.refresh_s) == (True, False, 60.0)


def test_the_client_inside_a_bookie_presents_the_bookies_certificate() -> None:
    def own(**keys: Any) -> ClientSecuritySettings:
        assigned = _fields(BookieSecurityConfig, keys)
        return own_client_security_settings(
            load(BookieSecurityConfig, flags={}, assigned=assigned, environment={}).config
        )

    assert own(**TLS).tls == TlsFiles("/keys/bookie.pem", "/keys/bookie.key", trust="/keys/ca.pem")
    assert own() == ClientSecuritySettings()
    from_file = own(clientAuthProviderFactoryClass="token", clientAuthParameters="file:///keys/own.token")
    assert (from_file.tls, from_file.token, from_file.token_path) == (None, "", "/keys/own.token")
    both = own(**TLS, clientAuthProviderFactoryClass="token", clientAuthParameters="token:abc")
    assert both.token == "abc" and both.tls is not None


def test_auto_recovery_in_the_process_of_a_bookie_with_tokens_needs_its_own_token() -> None:
    def config(**keys: Any) -> BookieSecurityConfig:
        assigned = _fields(BookieSecurityConfig, keys)
        return load(BookieSecurityConfig, flags={}, assigned=assigned, environment={}).config

    tokens = {"bookieAuthProviderFactoryClass": "token", "tokenSecretKey": "file:///keys/secret"}
    own = {"clientAuthProviderFactoryClass": "token", "clientAuthParameters": "file:///keys/own.token"}
    require_own_token(config())
    require_own_token(config(**tokens, **own))
    with pytest.raises(ConfigError, match="needs a token for auto-recovery"):
        require_own_token(config(**tokens))


def test_roles_and_tokens_are_accepted() -> None:
    settings = bookie(
        **TLS, tlsClientAuthentication=True, bookieAuthProviderFactoryClass=ROLES, authorizedRoles="broker, recovery"
    )
    assert (settings.roles.kind, settings.roles.authorized) == (AuthKind.CERTIFICATE_ROLES, ("broker", "recovery"))
    settings = bookie(bookieAuthProviderFactoryClass="token", tokenSecretKey="file:///keys/secret", tokenAuthClaim="r")
    assert settings.roles.token == TokenSettings(secret_key="file:///keys/secret", claim="r")


def test_a_setting_that_is_unused_without_its_provider_is_ignored() -> None:
    assert bookie(tlsKeyStoreType="JKS", tlsKeyStore="x", authorizedRoles="a").tls is None
    assert bookie(bookieAuthProviderFactoryClass="null").roles.kind is AuthKind.NONE


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (TLS | {"tlsKeyStoreType": "JKS"}, "keytool"),
        (TLS | {"tlsTrustStoreType": "PKCS12"}, "openssl pkcs12"),
        ({"tlsProviderFactoryClass": "com.example.Tls"}, FACTORY),
        ({"bookieAuthProviderFactoryClass": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"}, "or token"),
        ({"tlsRequired": True}, "needs TLS"),
        (TLS | {"bookieAuthProviderFactoryClass": ROLES, "authorizedRoles": "a"}, "tlsClientAuthentication"),
        (TLS | {"bookieAuthProviderFactoryClass": ROLES, "tlsClientAuthentication": True}, "authorizedRoles"),
        ({"bookieAuthProviderFactoryClass": "token"}, "exactly one of"),
        ({"bookieAuthProviderFactoryClass": "token", "tokenSecretKey": "a", "tokenPublicKey": "b"}, "2 are set"),
        ({"clientAuthProviderFactoryClass": "sasl"}, "unknown; use token"),
        ({"clientAuthProviderFactoryClass": "token"}, "clientAuthParameters"),
        ({"maxConnections": -1}, "maxConnections"),
    ],
)
def test_contradictory_settings_are_refused_with_a_reason(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        bookie(**keys)


def test_pulsars_keys_of_a_broker_are_accepted() -> None:
    settings = client(
        bookkeeperTLSProviderFactoryClass=FACTORY,
        bookkeeperTLSClientAuthentication="true",
        bookkeeperTLSTrustCertsFilePath="/keys/ca.pem",
        bookkeeperTLSCertificateFilePath="/keys/broker.pem",
        bookkeeperTLSKeyFilePath="/keys/broker.key",
    )
    assert settings.tls == TlsFiles("/keys/broker.pem", "/keys/broker.key", trust="/keys/ca.pem")
    assert settings.check_host_name
    only_trust = client(bookkeeperTLSTrustCertsFilePath="/keys/ca.pem", bookkeeperTLSCertificateFilePath="/x")
    assert only_trust.tls == TlsFiles(trust="/keys/ca.pem")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("token:abc", ClientSecuritySettings(token="abc")),
        ("abc", ClientSecuritySettings(token="abc")),
        ("file:///keys/token", ClientSecuritySettings(token_path="/keys/token")),
    ],
)
def test_a_token_is_given_as_in_pulsar(given: str, expected: ClientSecuritySettings) -> None:
    keys = {"bookkeeperClientAuthenticationPlugin": "token", "bookkeeperClientAuthenticationParameters": given}
    assert client(**keys) == expected


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"bookkeeperTLSClientAuthentication": True}, "bookkeeperTLSKeyFilePath"),
        ({"bookkeeperTLSTrustCertsFilePath": "/a", "bookkeeperTLSTrustCertTypes": "JKS"}, "keytool"),
        ({"bookkeeperClientAuthenticationPlugin": "token"}, "bookkeeperClientAuthenticationParameters"),
        ({"bookkeeperClientAuthenticationPlugin": "sasl"}, "unknown; use token"),
        ({"bookkeeperTLSProviderFactoryClass": "x"}, FACTORY),
    ],
)
def test_settings_that_a_broker_does_not_support_are_refused_with_a_reason(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        client(**keys)


@pytest.mark.parametrize("kind", ["standalone", "bookie", "broker", "autorecovery"])
def test_shown_settings_can_be_read_back(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("toml", "yaml"):
        assert run(["config", "show", kind, "-o", form]) == 0
        file = tmp_path / f"q.{form}"
        file.write_text(capsys.readouterr().out)
        assert run(["config", "show", kind, "--config", str(file), "-o", form]) == 0
        assert capsys.readouterr().out == file.read_text()


@pytest.mark.parametrize("form", ["table", "toml", "yaml", "json"])
def test_config_show_prints_no_secret(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "quire.toml"
    file.write_text('tokenSecretKey = "hush-hush-hush"\nbookkeeperClientAuthenticationParameters = "token:hush-hush"\n')
    for kind in ("bookie", "broker"):
        assert run(["config", "show", kind, "--config", str(file), "-o", form]) == 0
        shown = capsys.readouterr().out
        assert "hush" not in shown
        assert HIDDEN in shown


def test_a_refusal_quotes_no_secret() -> None:
    for keys in (
        {"bookieAuthProviderFactoryClass": "token", "tokenSecretKey": "hush", "tokenStaticFile": "x"},
        {"tokenSecretKey": ["hush"]},
    ):
        with pytest.raises(ConfigError) as refusal:
            bookie(**keys)
        assert "hush" not in str(refusal.value)
    settings = bookie(bookieAuthProviderFactoryClass="token", tokenSecretKey="hush")
    assert "hush" not in repr(settings)


def test_every_setting_of_a_bookie_is_used() -> None:
    """An unused setting would be a broken promise; those kept for compatibility are documented as such."""
    unread = {"tls_provider", "tls_key_store_type", "tls_trust_store_type", "tls_trust_store_password_path"}
    unread |= {"own_auth_plugin", "own_auth_parameters"}  # used by the client: see above
    unread |= {"http_admin_roles", "http_authenticate_metrics"}  # of the HTTP port: see test_admin_access.py
    base: dict[str, Any] = {**TLS, "tlsClientAuthentication": True, "authorizedRoles": "a"}
    token = {"bookieAuthProviderFactoryClass": "token"}
    for name, info in BookieSecurityConfig.model_fields.items():
        if name in unread:
            continue
        key = BookieSecurityConfig.key_of(name)
        keys = dict(base)
        if name.startswith("token") or name == "auth_provider":
            keys |= token
            if name not in ("token_secret_key", "token_public_key", "token_static_file"):
                keys["tokenSecretKey"] = "file:///secret"
        without = {each: value for each, value in keys.items() if each != key}
        if name == "tls_provider_factory_class":
            without["tlsClientAuthentication"] = False
        elif name in ("token_secret_key", "token_public_key", "token_static_file"):
            without["tokenStaticFile" if name != "token_static_file" else "tokenSecretKey"] = "/other"
        keys.setdefault(key, _other(info.default))
        assert bookie(**keys) != bookie(**without), name


def _other(default: Any) -> Any:
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default + 1000
    return "TLSv1.3" if isinstance(default, list) else default + "x"
