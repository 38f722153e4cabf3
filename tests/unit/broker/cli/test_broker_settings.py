"""Every configured key of a broker and of a standalone reaches its package."""

import socket
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from quire_bookie.config.client_security import ClientSecurityConfig
from quire_bookie.config.metadata_access import MetadataAccessConfig
from quire_bookie.config.sources import load
from quire_bookie.errors import ConfigError
from quire_bookie.model import DigestType
from quire_bookie.settings.http import HttpLimits
from quire_broker.cli.broker_settings import broker_settings, chosen_quorums, metadata_url, standalone_settings
from quire_broker.config.broker import BrokerConfig, StandaloneConfig
from quire_broker.config.offload import OffloadConfig
from quire_broker.config.security import BrokerSecurityConfig
from quire_broker.ownership.listeners import Binding
from quire_broker.policies.backlog_quota import BacklogQuota, BacklogQuotas, QuotaPolicy
from quire_broker.policies.fields import flaw_of
from quire_broker.schemas.compatibility import Strategy
from quire_broker.security.settings import OpenIdSettings, ProviderKind
from quire_broker.server.broker import BrokerSettings
from quire_broker.settings import policies
from quire_broker.settings.managed_ledger import UNLIMITED, ManagedLedgerSettings
from quire_broker.wire.kinds import TYPE_NAMES, SubscriptionType
from tests.support.setting_values import BALANCING, LEDGER_CLIENT, RECOVERY, STORAGE

OFFLOAD = set(OffloadConfig.model_fields)
"""Tested in test_offload_settings."""
SERVING: dict[str, Any] = BALANCING | {
    "ensemble_size": 5,
    "write_quorum": 2,
    "ack_quorum": 1,
    "digest_type": "MAC",
    "max_entries_per_ledger": 7,
    "max_size_per_ledger_mb": 8,
    "min_rollover_minutes": 0,
    "max_rollover_minutes": 11,
    "max_unacked_ranges_to_persist": 12,
    "cache_size_mb": 13,
    "read_cache_size_mb": 14,
    "connection_memory_mb": 77,
    "stalled_peer_s": 7,
    "slow_peer_s": 70,
    "slow_operation_ms": 250,
    "trace_endpoint": "http://collector:4318/v1/traces",
    "trace_sample_ratio": 0.25,
    "trace_max_per_second": 21,
    "trace_look_max_per_second": 201,
    "trace_queue_spans": 4097,
    "retention_minutes": 14,
    "retention_mb": 15,
    "retention_check_interval_s": 16,
    "backlog_quota_check_enabled": False,
    "backlog_quota_check_interval_s": 31,
    "backlog_quota_default_limit_bytes": 32,
    "backlog_quota_default_limit_s": 33,
    "cluster": "elsewhere",
    "broker_port": 1717,
    "http_port": 1818,
    "listen": "127.0.0.9",
    "advertise": "broker.example",
    "advertised_listeners": "external:pulsar://broker.example:6650",
    "shutdown_timeout_ms": 4500,
    "move_close_ms": 700,
    "max_message_size_bytes": 2048,
    "deduplication": True,
    "topic_metrics": True,
    "pause_on_acks": True,
    "batch_index_acks": True,
    "batch_index_acks_max_mb": 3,
    "allow_auto_topic_creation": False,
    "keep_alive_interval_s": 19,
    "max_unacked_per_consumer": 20,
    "max_unacked_per_subscription": 21,
    "delayed_messages_max": 22,
    "delayed_bucket_entries": 2222,
    "max_pending_publishes_per_connection": 22,
    "max_connections": 23,
    "max_connections_per_address": 24,
    "schema_bytes_max": 2323,
    "schema_check_steps_max": 2424,
    "close_unused_topics_after_s": 3030,
    "marked_ledger_idle_s": 29,
    "marked_ledger_rollovers_per_s": 30,
    "delete_inactive_topics": True,
    "delete_inactive_topics_mode": "delete_when_subscriptions_caught_up",
    "delete_inactive_topics_after_s": 38,
    "delete_inactive_topics_interval_s": 39,
    "subscription_expiration_minutes": 40,
    "client_request_timeout_s": 31,
    "max_concurrent_topic_loads": 33,
    "topic_load_timeout_s": 34,
    "publish_rate_per_topic_messages": 41,
    "publish_rate_per_topic_bytes": 42,
    "publish_rate_messages": 43,
    "publish_rate_bytes": 44,
    "dispatch_rate_per_topic_messages": 45,
    "dispatch_rate_per_topic_bytes": 46,
    "dispatch_rate_per_subscription_messages": 47,
    "dispatch_rate_per_subscription_bytes": 48,
    "dispatch_rate_messages": 49,
    "dispatch_rate_bytes": 50,
    "subscribe_rate_per_consumer": 51,
    "subscribe_rate_period_s": 52,
    "max_producers_per_topic": 61,
    "max_consumers_per_topic": 62,
    "max_consumers_per_subscription": 63,
    "max_subscriptions_per_topic": 64,
    "max_topics_per_namespace": 65,
    "ttl_s": 66,
    "subscription_types": "Shared,Failover",
    "allow_auto_subscription_creation": False,
    "allow_auto_topic_creation_type": "partitioned",
    "default_num_partitions": 67,
    "schema_compatibility_strategy": "BACKWARD",
    "schema_validation_enforced": True,
    "allow_auto_update_schema": False,
    "delayed_delivery": False,
    "encryption_required": True,
    "deduplication_snapshot_interval_s": 68,
    "name_characters_max": 2525,
    "topic_compaction_threshold_bytes": 2626,
    "topic_compaction_check_interval_s": 27,
    "topic_compaction_retain_null_key": True,
    "topic_compaction_keys_max_mb": 28,
    "patterns_evaluated": False,
    "pattern_characters_max": 53,
    "topic_watchers_max": 54,
    "publish_buffer_mb": 77,
    "web_socket_max_text_frame_size_bytes": 5555,
    "web_socket_session_idle_timeout_ms": 5656,
    "web_socket_ping_s": 57,
    "web_socket_max_sessions": 58,
    "entry_metadata_interceptors": "AppendIndexMetadataInterceptor",
    "entry_metadata_sent": True,
    "entry_filters": "properties",
}
STANDALONE: dict[str, Any] = (
    STORAGE
    | RECOVERY
    | LEDGER_CLIENT
    | {
        "auto_recovery": False,
        "max_frame_size_bytes": 6 << 20,
        "data": "/somewhere",
        "bookies": 3,
        "bookie_port": 2323,
        "bookie_host": "127.0.0.8",
    }
)
OF_A_LIMIT = {"backlog_quota_default_policy"}
"""Has no effect without a limit."""
ELSEWHERE = {
    "managed_ledger_password",
    "journal_submit",
    "metadata",
    "acknowledge_data_loss_risk",
    "journal_group_wait_ms",
}


def broker(**values: Any) -> BrokerConfig:
    """Return a validated configuration of a broker."""
    return BrokerConfig.model_validate(values)


def standalone(**values: Any) -> StandaloneConfig:
    """Return a validated configuration of a standalone."""
    return StandaloneConfig.model_validate({"acknowledge_data_loss_risk": True} | values)


def test_every_field_is_listed_here() -> None:
    own = {"metadata", "metadata_session_timeout_ms"} | set(ClientSecurityConfig.model_fields)
    own |= {"advertised_listeners_file"}  # see test_listeners_file
    own |= {"bind_addresses"}  # see test_ports_of_listeners
    # see test_console, test_pulsar_non_persistent, and the test of two defaults below
    shared = {"web_console", "non_persistent_topics", "web_socket_service"}
    own |= set(LEDGER_CLIENT) | OF_A_LIMIT | {"managed_ledger_password"}
    secured = set(BrokerSecurityConfig.model_fields) | set(MetadataAccessConfig.model_fields)
    assert set(BrokerConfig.model_fields) == set(SERVING) | own | shared | secured | OFFLOAD
    assert (
        set(StandaloneConfig.model_fields)
        == set(SERVING) | set(STANDALONE) | ELSEWHERE | OF_A_LIMIT | shared | secured | OFFLOAD
    )


@pytest.mark.parametrize("field", sorted(SERVING))
def test_a_field_changes_the_settings_of_a_broker(field: str) -> None:
    assert broker_settings(broker()) != broker_settings(broker(**{field: SERVING[field]}))


@pytest.mark.parametrize("field", sorted(SERVING | STANDALONE))
def test_a_field_changes_the_settings_of_a_standalone(field: str) -> None:
    base: dict[str, Any] = {"bookies": 5}
    value = (SERVING | STANDALONE)[field]
    changed = standalone(**(base | {field: value}))
    assert standalone_settings(standalone(**base)) != standalone_settings(changed)


def test_values_arrive_in_the_units_of_their_packages() -> None:
    settings = broker_settings(broker(**SERVING))
    ledger = settings.topics.ledger
    assert (ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum) == (5, 2, 1)
    assert ledger.digest_type is DigestType.HMAC
    assert (ledger.ledger_entries_max, ledger.ledger_bytes_max) == (7, 8 << 20)
    assert (ledger.rollover_age_min_s, ledger.rollover_age_max_s) == (0.0, 660.0)
    assert (ledger.unacked_ranges_max, ledger.cache_bytes, ledger.read_cache_bytes) == (12, 13 << 20, 14 << 20)
    assert ledger.batch_masks_bytes_max == 3 << 20
    assert (ledger.retention_s, ledger.retention_bytes, ledger.trim_interval_s) == (840.0, 15 << 20, 16.0)
    assert settings.session.message_bytes_max == 2048
    assert settings.topics.topic.subscriptions.unacked_per_consumer_max == 20
    assert settings.clients.publish_bytes_max == 77 << 20
    kept = broker_settings(broker(retention_minutes=-1, retention_mb=-1)).topics.ledger
    assert (kept.retention_s, kept.retention_bytes) == (UNLIMITED, UNLIMITED)


def test_the_password_of_the_ledgers_arrives_and_is_not_shown() -> None:
    made = (broker_settings(broker(), b"sesame"), standalone_settings(standalone(), b"sesame").broker)
    assert all(one.topics.ledger.password == b"sesame" for one in made)
    assert "sesame" not in repr(made)
    assert "sesame" not in str(broker(managed_ledger_password="sesame").shown())


def test_the_default_quotas_have_the_default_policy_and_no_limit_is_none() -> None:
    given = {"backlog_quota_default_limit_bytes": 5, "backlog_quota_default_policy": "consumer_backlog_eviction"}
    found = broker_settings(broker(**given)).backlog_quotas.default
    assert found == BacklogQuotas(BacklogQuota(5, QuotaPolicy.EVICT), None)
    for wrong in ({"backlog_quota_default_limit_bytes": 0}, {"backlog_quota_default_policy": "drop"}):
        with pytest.raises(ValueError, match=r"a limit is a number above 0|consumer_backlog_eviction"):
            broker(**wrong)


def test_the_setting_that_opens_the_admin_rest_arrives() -> None:
    opened = (
        broker_settings(broker(http_admin_remote=True)),
        standalone_settings(standalone(http_admin_remote=True)).broker,
    )
    assert all(made.access.admin_remote for made in opened)
    assert not broker_settings(broker()).access.admin_remote


def test_the_bounds_of_http_connections_arrive() -> None:
    given = {"http_header_timeout_ms": 1500, "http_connections_per_address": 7}
    for made in (broker_settings(broker(**given)), standalone_settings(standalone(**given)).broker):
        assert made.access.http == HttpLimits(1.5, 7)


def test_a_broker_accepts_its_published_and_its_allowed_host_names() -> None:
    listeners = "a:pulsar://a.example:6650,b:pulsar+ssl://b.example:6651"
    made = broker_settings(
        broker(advertise="own.example", advertised_listeners=listeners, http_allowed_hosts="c.example")
    )
    assert made.access.allowed_hosts == ("own.example", "a.example", "b.example", "c.example")
    assert standalone_settings(standalone()).broker.access.allowed_hosts == ()


def test_defaults_are_those_of_the_packages() -> None:
    settings = broker_settings(broker(advertise="localhost"))
    assert settings == BrokerSettings()
    assert settings.topics.ledger == ManagedLedgerSettings()


@pytest.mark.parametrize(
    ("bookies", "given", "expected"),
    [
        (1, {}, (1, 1, 1)),
        (2, {}, (2, 2, 2)),
        (3, {}, (3, 3, 2)),
        (7, {}, (3, 3, 2)),
        (5, {"ensemble_size": 5}, (5, 5, 5)),
        (5, {"ensemble_size": 5, "write_quorum": 3}, (5, 3, 2)),
        (3, {"write_quorum": 2}, (3, 2, 2)),
        (3, {"ack_quorum": 3}, (3, 3, 3)),
    ],
)
def test_unset_quorums_follow_the_number_of_bookies(
    bookies: int, given: dict[str, int], expected: tuple[int, int, int]
) -> None:
    assert chosen_quorums(broker(**given), bookies) == expected


def test_impossible_quorums_are_refused() -> None:
    with pytest.raises(ConfigError, match="E >= Qw >= Qa"):
        chosen_quorums(broker(write_quorum=3), 1)
    with pytest.raises(ValueError, match="needs 3 bookies, but --bookies is 2"):
        standalone(bookies=2, ensemble_size=3)
    with pytest.raises(ValueError, match="cannot carry a message"):
        standalone(max_frame_size_bytes=1 << 20)


def test_bookies_of_a_standalone_need_no_name_unless_others_share_the_metadata() -> None:
    assert standalone_settings(standalone(advertise="public.example")).bookie.advertise == "localhost"
    shared = standalone(advertise="public.example", metadata="etcd://h:1")
    assert standalone_settings(shared).bookie.advertise == "localhost"


def test_a_standalone_listens_on_loopback_and_a_separate_broker_everywhere() -> None:
    alone = standalone_settings(standalone())
    assert (alone.broker.listen, alone.bookie.listen, alone.broker.advertise) == ("127.0.0.1", "127.0.0.1", "localhost")
    assert broker_settings(broker()).listen == "0.0.0.0"
    opened = standalone_settings(standalone(listen="0.0.0.0"))
    assert (opened.broker.listen, opened.bookie.listen) == ("0.0.0.0", "127.0.0.1")


@pytest.mark.parametrize(
    ("given", "advertised"),
    [
        ({"listen": "0.0.0.0"}, socket.gethostname()),
        ({"listen": "::"}, socket.gethostname()),
        ({"listen": "192.0.2.7"}, "192.0.2.7"),
        ({"listen": "0.0.0.0", "advertise": "public.example"}, "public.example"),
    ],
)
def test_an_opened_standalone_publishes_a_reachable_host(given: dict[str, str], advertised: str) -> None:
    assert standalone_settings(standalone(**given)).broker.advertise == advertised


@pytest.mark.parametrize(
    ("given", "registered"),
    [
        ({"bookie_host": "0.0.0.0"}, socket.gethostname()),
        ({"bookie_host": "0.0.0.0", "advertise": "public.example"}, "public.example"),
        ({"bookie_host": "192.0.2.7", "advertise": "public.example"}, "192.0.2.7"),
        ({"listen": "0.0.0.0", "advertise": "public.example"}, "localhost"),
    ],
)
def test_bookies_in_a_shared_etcd_are_registered_where_they_listen(given: dict[str, str], registered: str) -> None:
    assert standalone_settings(standalone(metadata="etcd://h:1", **given)).bookie.advertise == registered


def test_metadata_is_beside_the_data_unless_a_url_is_configured() -> None:
    assert metadata_url(standalone(data="/d")) == "local:/d/metadata"
    assert metadata_url(standalone(metadata="etcd://h:1")) == "etcd://h:1"
    assert standalone_settings(standalone(data="/d")).broker.metadata_url == "local:/d/metadata"
    assert broker_settings(broker(metadata="etcd:http://h:1")).metadata_url == "etcd:http://h:1"


@pytest.mark.parametrize("model", [BrokerConfig, StandaloneConfig])
def test_two_services_on_one_port_are_refused(model: type[BrokerConfig] | type[StandaloneConfig]) -> None:
    with pytest.raises(ValidationError, match="brokerServicePort and webServicePort are both 7001; give each its own"):
        model.model_validate({"broker_port": 7001, "http_port": 7001})
    assert model.model_validate({"broker_port": 0, "http_port": 0}).http_port == 0


PORT_OF_A = "a:pulsar://0.0.0.0:6652"


def test_ports_of_listeners() -> None:
    given: dict[str, Any] = {"advertised_listeners": "a:pulsar://h:1", "bind_addresses": PORT_OF_A}
    assert broker_settings(broker(**given)).bindings == (Binding("a", "0.0.0.0", 6652, tls=False),)
    with pytest.raises(ConfigError, match="bindAddresses names the listener 'a', which advertisedListeners does not"):
        broker_settings(broker(bind_addresses=PORT_OF_A))


@pytest.mark.parametrize(
    ("bound", "reason"),
    [
        ("a:pulsar://0.0.0.0:6650", "the port 6650, which another service has too"),
        ("a:pulsar://0.0.0.0:1,b:pulsar://0.0.0.0:1", "the port 1, which another service has too"),
        ("a:pulsar+ssl://0.0.0.0:6652", "ports with TLS need tlsCertificateFilePath"),
        ("a:6652", "not a listener"),
    ],
)
def test_ports_of_listeners_that_cannot_be_are_refused(bound: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        broker(bind_addresses=bound)


BASIC = {"authentication_enabled": True, "basic_auth_conf": "file:///users"}
PACKAGE = "org.apache.pulsar.broker.authentication.AuthenticationProvider"


def test_providers_arrive_in_their_order_under_both_names() -> None:
    def order(providers: str, **more: Any) -> tuple[ProviderKind, ...]:
        found = broker_settings(broker(**(BASIC | {"authentication_providers": providers} | more))).access
        assert found.authentication is not None and found.authentication.passwords == "file:///users"
        return found.authentication.order

    secret = {"token_secret_key": "/secret"}
    assert order("basic") == order(f"{PACKAGE}Basic") == (ProviderKind.BASIC,)
    assert order("basic,token", **secret) == (ProviderKind.BASIC, ProviderKind.TOKEN)
    assert order(f"{PACKAGE}Token,{PACKAGE}Basic", **secret) == (ProviderKind.TOKEN, ProviderKind.BASIC)
    shown = broker(**(BASIC | {"authentication_providers": "basic"})).shown()
    assert shown["basicAuthConf"] == "(set, not shown)"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"authentication_providers": "basic", "basic_auth_conf": ""},
            "ProviderBasic needs basicAuthConf",
        ),
        ({"authentication_providers": f"basic,{PACKAGE}Basic"}, "names a provider twice"),
        ({"authentication_providers": "basic,com.example.Ours"}, "com.example.Ours is not known; use of .*Basic"),
    ],
)
def test_providers_that_cannot_work_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        broker(**(BASIC | given))


OPEN_ID = {
    "authentication_enabled": True,
    "authentication_providers": "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID",
    "openIDAllowedTokenIssuers": "https://a.example/realm,https://b.example",
    "openIDAllowedAudiences": "one,two",
}


def open_id(**more: Any) -> OpenIdSettings:
    access = broker_settings(broker(**(OPEN_ID | more))).access
    assert access.authentication is not None and access.authentication.open_id is not None
    assert access.authentication.order == (ProviderKind.OPEN_ID,)
    return access.authentication.open_id


def test_the_issuers_of_tokens_arrive_under_pulsars_keys() -> None:
    assert open_id() == OpenIdSettings(("https://a.example/realm", "https://b.example"), frozenset({"one", "two"}))
    assert open_id(
        openIDAllowedTokenIssuers="http://a:8080/",
        openIDAllowedAudiences="one",
        openIDTokenIssuerTrustCertsFilePath="/ca.pem",
        openIDRoleClaim="roles",
        openIDAcceptedTimeLeewaySeconds=1,
        openIDCacheSize=2,
        openIDCacheRefreshAfterWriteSeconds=3,
        openIDCacheExpirationSeconds=4,
        openIDHttpConnectionTimeoutMillis=5,
        openIDHttpReadTimeoutMillis=6,
        openIDKeyIdCacheMissRefreshSeconds=7,
        openIDRequireIssuersUseHttps=False,
        tlsCertRefreshCheckDurationSec=8,
    ) == OpenIdSettings(
        ("http://a:8080/",), frozenset({"one"}), "/ca.pem", "roles", 1.0, 2, 3.0, 4.0, 0.005, 0.006, 7.0, False, 8.0
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"openIDAllowedTokenIssuers": ""}, "needs openIDAllowedTokenIssuers, e.g. openIDAllowedTokenIssuers=https://"),
        ({"openIDAllowedAudiences": ""}, "needs openIDAllowedAudiences, e.g. openIDAllowedAudiences=pulsar"),
        ({"openIDAllowedTokenIssuers": "http://a"}, "does not begin with https"),
        ({"openIDAllowedTokenIssuers": "https://user:secret@a"}, "not a URL of the form"),
        ({"openIDAllowedTokenIssuers": "https://a?b=c"}, "names 'https://a.b=c', which is not a URL"),
        ({"openIDAllowedTokenIssuers": "a.example"}, "names 'a.example', which is not a URL"),
        ({"openIDFallbackDiscoveryMode": "KUBERNETES_DISCOVER_TRUSTED_ISSUER"}, "is not supported"),
        ({"openIDCacheSize": 0}, "greater than or equal to 1"),
        ({"openIDHttpReadTimeoutMillis": 60_001}, "less than or equal to 60000"),
    ],
)
def test_issuers_that_cannot_be_trusted_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        broker(**(OPEN_ID | given))


def test_the_audit_log_can_be_switched_off() -> None:
    assert broker_settings(broker()).access.audit
    assert not broker_settings(broker(auditLogEnabled=False)).access.audit


def test_a_standalone_serves_websockets_by_default_and_a_broker_does_not() -> None:
    for made, by_default in ((broker_settings(broker()), False), (standalone_settings(standalone()).broker, True)):
        assert made.websocket.enabled is by_default
    assert broker_settings(broker(web_socket_service=True)).websocket.enabled
    assert not standalone_settings(standalone(web_socket_service=False)).broker.websocket.enabled
    assert broker_settings(broker(web_socket_session_idle_timeout_ms=5656)).websocket.idle_s == 5.656


def test_an_origin_is_not_that_of_a_word_in_a_url() -> None:
    given = {"open_id_issuers": "http://host/data", "authentication_enabled": "true"}
    given |= {"authentication_providers": "openid", "open_id_audiences": "a", "data": "/d", "http_port": "1"}
    with pytest.raises(ConfigError) as found:
        load(StandaloneConfig, flags=given, environment={})
    text = str(found.value)
    assert "openIDAllowedTokenIssuers is from flag" in text and "openIDRequireIssuersUseHttps is from default" in text
    assert "data is from" not in text


def test_providers_without_authentication_are_a_doubt() -> None:
    (doubt,) = broker(authentication_providers="token,tls").doubts
    assert "authenticationProviders token,tls has no effect" in doubt and "authenticationEnabled=true" in doubt
    assert not broker().doubts
    secured = broker(authentication_enabled=True, authentication_providers="token", token_secret_key="/key")
    assert not secured.doubts


@pytest.mark.parametrize(("text", "shown"), [("Shared,Most", "'Most'"), ("", "empty"), (" , ", "empty")])
def test_types_of_subscriptions_that_do_not_exist_are_refused(text: str, shown: str) -> None:
    with pytest.raises(ValidationError, match=f"subscriptionTypesEnabled: {shown} is not a type"):
        broker(subscription_types=text)


def test_the_names_of_types_and_strategies_are_those_that_are_served() -> None:
    assert policies.DefaultPolicies().types == [TYPE_NAMES[kind] for kind in SubscriptionType]
    assert set(get_args(policies.StrategyName)) == {one.name for one in Strategy} - {"UNDEFINED"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"producers_max": 2}, {"max_producers_per_topic": 2}),
        ({"consumers_max": 2}, {"max_consumers_per_topic": 2}),
        ({"subscription_consumers_max": 2}, {"max_consumers_per_subscription": 2}),
        ({"subscriptions_max": 2}, {"max_subscriptions_per_topic": 2}),
        ({"topics_max": 2}, {"max_topics_per_namespace": 2}),
        ({"ttl_s": 2}, {"message_ttl_in_seconds": 2}),
        ({"subscription_types": "Shared"}, {"subscription_types_enabled": ["Shared"]}),
        (
            {"create_subscriptions": False},
            {"autoSubscriptionCreationOverride": {"allowAutoSubscriptionCreation": False}},
        ),
        (
            {"topic_type": "partitioned", "partitions": 3},
            {
                "autoTopicCreationOverride": {
                    "allowAutoTopicCreation": True,
                    "topicType": "partitioned",
                    "defaultNumPartitions": 3,
                }
            },
        ),
        ({"partitions": 3}, {}),
        ({"schema_strategy": "FORWARD"}, {"schema_compatibility_strategy": "FORWARD"}),
        ({"schema_required": True}, {"schema_validation_enforced": True}),
        ({"schema_updates": False}, {"is_allow_auto_update_schema": False}),
        ({"delayed_delivery": False}, {"delayed_delivery_policies": {"active": False}}),
        ({"encryption_required": True}, {"encryption_required": True}),
    ],
    ids=str,
)
def test_defaults_are_policies_that_could_be_stored(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = policies.DefaultPolicies(**given).restrictions(True)
    assert found == expected
    assert [flaw_of(name, value) for name, value in found.items() if flaw_of(name, value)] == []
