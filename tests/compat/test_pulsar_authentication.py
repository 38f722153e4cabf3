"""Tests of the stock Python client with tokens, passwords and OAuth2 (from a real issuer) on one broker."""

import base64
import itertools
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import bcrypt
import jwt
import pytest

pulsar = pytest.importorskip("pulsar")

from tests.support.standalone import QUIRE, StandaloneProcess, environment  # noqa: E402  after the check that there is a client
from tests.support.token_issuer import AUDIENCE, CLIENT_SECRET, TokenIssuer  # noqa: E402

pytestmark = [pytest.mark.compat, pytest.mark.slow]

SECRET = b"a secret of tests that is long enough for HS256"
PACKAGE = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
OPEN_ID = "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID"
RECEIVE_MS = 20_000
# The C++ core does not report an ERROR that answers its CONNECT: it retries until its timeout.
KEPT_OUT = (pulsar.AuthenticationError, pulsar.Timeout)
_topics = (f"persistent://public/default/a{number}" for number in itertools.count())


def token(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET, algorithm="HS256")


def line(user: str, password: str) -> str:
    return f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(10)).decode()}\n"


class Broker:
    """A standalone that takes tokens and passwords."""

    def __init__(self, folder: Path, issuer: TokenIssuer) -> None:
        self.users = folder / "users"
        # `htpasswd -m` wrote the second one: user `old`, password `secret`.
        self.users.write_text(line("admin", "the:pass word") + "old:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n")
        key = folder / "secret.key"
        key.write_bytes(SECRET)
        settings = {
            "authenticationEnabled": "true",
            "authenticationProviders": f"{PACKAGE}Token,{PACKAGE}Basic,{OPEN_ID}",
            "openIDAllowedTokenIssuers": issuer.url,
            "openIDAllowedAudiences": AUDIENCE,
            "openIDRequireIssuersUseHttps": "false",
            "openIDKeyIdCacheMissRefreshSeconds": "1",
            "authenticationRefreshCheckSeconds": "1",
            "tokenSecretKey": f"file://{key}",
            "basicAuthConf": f"file://{self.users}",
            "authorizationEnabled": "true",
            "superUserRoles": "admin,operator,service",
        }
        self.process = StandaloneProcess(folder, settings=tuple(f"{name}={value}" for name, value in settings.items()))
        self.process.start()

    def rest(self, method: str, path: str, credentials: str, body: Any = None) -> int:
        """The status of a request with this header Authorization."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": credentials}
        try:
            with urlopen(Request(self.process.http + path, data, headers, method=method), timeout=30) as answer:
                return int(answer.status)
        except HTTPError as error:
            return error.code


@pytest.fixture(scope="module")
def issuer() -> Iterator[TokenIssuer]:
    found = TokenIssuer()
    yield found
    found.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, issuer: TokenIssuer) -> Iterator[Broker]:
    found = Broker(tmp_path_factory.mktemp("providers"), issuer)
    yield found
    found.process.close()


@pytest.fixture
def connect(broker: Broker) -> Iterator[Callable[[Any], Any]]:
    clients = []

    def make(authentication: Any) -> Any:
        client = pulsar.Client(
            broker.process.url,
            authentication=authentication,
            operation_timeout_seconds=4,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def send_and_receive(client: Any, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"m")
    message = consumer.receive(RECEIVE_MS)
    assert message.data() == b"m"
    consumer.acknowledge(message)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def test_clients_with_a_token_and_with_a_password_use_one_broker(connect: Callable[[Any], Any]) -> None:
    send_and_receive(connect(pulsar.AuthenticationBasic("admin", "the:pass word")), next(_topics))
    send_and_receive(connect(pulsar.AuthenticationToken(token("operator"))), next(_topics))


def test_a_token_that_a_file_ends_with_a_newline_is_accepted(connect: Callable[[Any], Any], tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token("operator") + "\n")
    send_and_receive(connect(pulsar.AuthenticationToken(file.read_text)), next(_topics))


def test_a_wrong_password_and_a_role_without_permission_are_refused(connect: Callable[[Any], Any]) -> None:
    topic = next(_topics)
    for wrong in (("admin", "the:pass"), ("nobody", "secret"), ("old", "Secret")):
        with pytest.raises(KEPT_OUT):
            connect(pulsar.AuthenticationBasic(*wrong)).create_producer(topic)
    with pytest.raises(pulsar.AuthorizationError):
        connect(pulsar.AuthenticationBasic("old", "secret")).create_producer(topic)


def test_a_password_opens_the_admin_rest_and_grants_work_for_its_user(
    broker: Broker, connect: Callable[[Any], Any]
) -> None:
    grant = "/admin/v2/namespaces/public/default/permissions/old"
    assert broker.rest("POST", grant, basic("old", "secret"), ["produce", "consume"]) == 403
    assert broker.rest("POST", grant, basic("admin", "wrong"), ["produce", "consume"]) == 401
    assert broker.rest("POST", grant, basic("admin", "the:pass word"), ["produce", "consume"]) == 204
    send_and_receive(connect(pulsar.AuthenticationBasic("old", "secret")), next(_topics))
    assert broker.rest("DELETE", grant, basic("admin", "the:pass word")) == 204


def test_our_commands_and_a_profile_show_a_password(broker: Broker, tmp_path: Path) -> None:
    secret, wrong, lines = tmp_path / "secret", tmp_path / "wrong", tmp_path / "lines"
    secret.write_text("the:pass word\n")
    wrong.write_text("the:pass\n")
    lines.write_text("one\ntwo\n")
    topic = next(_topics)

    def quire(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        variables |= {"QUIRE_PROFILES": str(tmp_path / "profiles.toml")}
        return subprocess.run(
            [QUIRE, *words], env=environment() | variables, capture_output=True, text=True, timeout=120, check=False
        )

    shown = {"QUIRE_USER": "admin", "QUIRE_PASSWORD": f"file://{secret}"}
    produced = quire("produce", topic, str(lines), "--broker", broker.process.url, **shown)
    assert produced.returncode == 0, produced.stderr
    fields = (f"http={broker.process.http}", f"broker={broker.process.url}", "user=admin")
    assert quire("profile", "set", "p", *fields, f"password=file://{secret}").returncode == 0
    assert quire("--profile", "p", "consume", topic).stdout == "one\ntwo\n"
    assert topic in quire("--profile", "p", "topic", "list", "public/default").stdout
    assert quire("profile", "set", "p", f"password=file://{wrong}").returncode == 0
    for words in (("consume", topic), ("topic", "list", "public/default")):
        refused = quire("--profile", "p", *words)
        assert refused.returncode != 0 and "the:pass" not in refused.stderr


def test_a_client_whose_user_is_removed_is_disconnected_and_kept_out(
    broker: Broker, connect: Callable[[Any], Any]
) -> None:
    kept = broker.users.read_text()
    broker.users.write_text(kept + line("leaver", "here"))
    grant = "/admin/v2/namespaces/public/default/permissions/leaver"
    assert broker.rest("POST", grant, f"Bearer {token('operator')}", ["produce"]) == 204
    producer = None
    for _ in range(10):  # the file is read once a second
        try:
            producer = connect(pulsar.AuthenticationBasic("leaver", "here")).create_producer(next(_topics))
            break
        except KEPT_OUT:
            continue
    assert producer is not None
    producer.send(b"m")
    broker.users.write_text(kept)
    with pytest.raises((pulsar.Timeout, pulsar.ConnectError, pulsar.AlreadyClosed, pulsar.NotConnected)):
        for _ in range(100_000):  # longer than the second after which the file is read again
            producer.send(b"m")


def oauth2(issuer: TokenIssuer, client_id: str, **changes: str) -> Any:
    given = {
        "type": "client_credentials",
        "issuer_url": issuer.url,
        "client_id": client_id,
        "client_secret": CLIENT_SECRET,
        "audience": AUDIENCE,
    }
    return pulsar.AuthenticationOauth2(json.dumps(given | changes))


def test_a_client_with_oauth2_gets_its_token_from_the_issuer_and_its_role_from_the_token(
    connect: Callable[[Any], Any], issuer: TokenIssuer
) -> None:
    send_and_receive(connect(oauth2(issuer, "service")), next(_topics))
    assert issuer.asked["/token"] >= 1
    with pytest.raises(pulsar.AuthorizationError):
        connect(oauth2(issuer, "stranger")).create_producer(next(_topics))
    with pytest.raises(KEPT_OUT):
        connect(oauth2(issuer, "service", audience="another")).create_producer(next(_topics))


def test_the_admin_rest_takes_tokens_of_the_issuer(broker: Broker, issuer: TokenIssuer) -> None:
    path = "/admin/v2/tenants"
    assert broker.rest("GET", path, f"Bearer {issuer.token('service')}") == 200
    assert broker.rest("GET", path, f"Bearer {issuer.token('stranger')}") == 403
    assert broker.rest("GET", path, f"Bearer {issuer.token('service', aud='another')}") == 401
    assert broker.rest("GET", path, f"Bearer {issuer.token('service', exp=1)}") == 401


def test_a_client_with_oauth2_continues_when_its_token_expires_and_the_issuer_has_new_keys(
    connect: Callable[[Any], Any], issuer: TokenIssuer
) -> None:
    issuer.lasts_s = 5.0
    try:
        producer = connect(oauth2(issuer, "service")).create_producer(next(_topics))
        issuer.rotate()
        asked, sent = issuer.asked["/token"], 0
        while issuer.asked["/token"] < asked + 2:
            producer.send(b"m")
            sent += 1
            assert sent < 100_000, "the client never asked for another token"
        for _ in range(100):
            producer.send(b"m")
    finally:
        issuer.lasts_s = 3600.0
