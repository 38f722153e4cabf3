"""The stock Java client and pulsar-admin with OAuth2: tokens of a real issuer, which expire and whose keys change."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.polling import until
from tests.support.standalone import StandaloneProcess
from tests.support.stock_clients import PULSAR_ADMIN, Program, run_tool
from tests.support.token_issuer import AUDIENCE, CLIENT_SECRET, DISCOVERY, TokenIssuer

pytestmark = [pytest.mark.compat, pytest.mark.timeout(1200)]

PLUGIN = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"
PROVIDER = "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID"
TIMEOUT_S = 120.0


class World:
    """A standalone that takes tokens of an issuer; the role `service` may do everything, `app` publish and consume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.issuer = TokenIssuer()
        settings = {
            "authenticationEnabled": "true",
            "authenticationProviders": PROVIDER,
            "authorizationEnabled": "true",
            "superUserRoles": "service",
            "openIDAllowedTokenIssuers": self.issuer.url,
            "openIDAllowedAudiences": AUDIENCE,
            "openIDRequireIssuersUseHttps": "false",
            "openIDKeyIdCacheMissRefreshSeconds": "1",
            "authenticationRefreshCheckSeconds": "1",
        }
        self.broker = StandaloneProcess(folder, settings=tuple(f"{name}={value}" for name, value in settings.items()))
        self.broker.start()
        self.rest("POST", "/admin/v2/namespaces/public/default/permissions/app", ["produce", "consume"])

    def close(self) -> None:
        """End both."""
        self.broker.close()
        self.issuer.close()

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """Ask the broker as `service`."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.issuer.token('service')}"}
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.broker.http + path, data, headers, method=method), timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def parameters(self, client_id: str, *, audience: str = AUDIENCE) -> str:
        """The parameters of the plugin for a client of the issuer, whose secret is in a file."""
        key = self.folder / f"{client_id}.json"
        shown = {"type": "client_credentials", "client_id": client_id, "client_secret": CLIENT_SECRET}
        key.write_text(json.dumps(shown | {"issuer_url": self.issuer.url}))
        return json.dumps(
            {
                "type": "client_credentials",
                "issuerUrl": self.issuer.url,
                "privateKey": key.as_uri(),
                "audience": audience,
            }
        )

    def publishers(self, topic: str) -> list[dict[str, Any]]:
        """The publishers of a topic in its stats."""
        found: list[dict[str, Any]] = self.rest("GET", f"/admin/v2/persistent/public/default/{topic}/stats")[
            "publishers"
        ]
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    found = World(tmp_path_factory.mktemp("oauth2"))
    yield found
    found.close()


@pytest.fixture
def start(world: World, tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts the Java program with the parameters of the plugin."""
    programs: list[Program] = []

    def make(parameters: str, *words: str) -> Program:
        log = tmp_path / f"{len(programs)}.log"
        environment = {"AUTH_PLUGIN": PLUGIN, "AUTH_PARAMETERS": parameters}
        programs.append(Program(log, "java", words[0], world.broker.url, *words[1:], environment=environment))
        return programs[-1]

    yield make
    for program in programs:
        program.kill()


def topic_of(name: str) -> str:
    return f"persistent://public/default/{name}"


def acknowledged(publisher: Program) -> int:
    return len(publisher.of("A"))


def test_a_client_publishes_and_consumes_with_tokens_of_the_issuer(world: World, start: Callable[..., Program]) -> None:
    asked = dict(world.issuer.asked)
    consumer = start(world.parameters("app"), "consume", "s", topic_of("plain"))
    consumer.wait_for_line("R")
    publisher = start(world.parameters("app"), "publish", "5", "3", topic_of("plain"))
    until(lambda: acknowledged(publisher) >= 50, publisher.why, timeout_s=TIMEOUT_S)
    until(lambda: len(consumer.of("M")) >= 50, consumer.why, timeout_s=TIMEOUT_S)
    assert not publisher.of("E") and not consumer.of("E")
    assert world.issuer.asked["/token"] >= asked.get("/token", 0) + 2
    assert world.issuer.asked[DISCOVERY] > asked.get(DISCOVERY, 0)


@pytest.mark.parametrize(
    ("client_id", "changes", "said"),
    [
        ("stranger", {}, "AuthorizationException"),
        ("app", {"audience": "another"}, "AuthenticationException"),
    ],
)
def test_a_stranger_and_another_audience_are_refused(
    world: World, start: Callable[..., Program], client_id: str, changes: dict[str, str], said: str
) -> None:
    refused = start(world.parameters(client_id, **changes), "publish", "5", "3", topic_of("refused"))
    until(lambda: said in refused.log.read_text(errors="replace"), refused.why, timeout_s=TIMEOUT_S)
    assert not refused.of("A")


def test_a_connection_stays_when_tokens_expire_and_keys_change(world: World, start: Callable[..., Program]) -> None:
    world.issuer.lasts_s = 6.0
    try:
        publisher = start(world.parameters("app"), "publish", "5", "3", topic_of("long"))
        until(lambda: acknowledged(publisher) >= 20, publisher.why, timeout_s=TIMEOUT_S)
        before = world.publishers("long")
        world.issuer.rotate()
        asked = world.issuer.asked["/token"]
        until(lambda: world.issuer.asked["/token"] >= asked + 3, publisher.why, timeout_s=TIMEOUT_S)
        sent = acknowledged(publisher)
        until(lambda: acknowledged(publisher) >= sent + 20, publisher.why, timeout_s=TIMEOUT_S)
        after = world.publishers("long")
    finally:
        world.issuer.lasts_s = 3600.0
    assert [one["address"] for one in after] == [one["address"] for one in before]
    assert [one["connectedSince"] for one in after] == [one["connectedSince"] for one in before]
    assert not publisher.of("E"), publisher.why()


def test_a_client_to_which_the_issuer_gives_no_further_token_is_disconnected(
    world: World, start: Callable[..., Program]
) -> None:
    world.issuer.lasts_s = 6.0
    try:
        publisher = start(world.parameters("app"), "publish", "5", "3", topic_of("withdrawn"))
        until(lambda: acknowledged(publisher) >= 20, publisher.why, timeout_s=TIMEOUT_S)
        world.issuer.answers["/token"] = (401, b'{"error": "invalid_client"}')
        world.issuer.lasts_s = 3600.0  # for the requests of the test itself
        until(lambda: not world.publishers("withdrawn"), publisher.why, timeout_s=TIMEOUT_S)
    finally:
        world.issuer.answers.clear()
        world.issuer.lasts_s = 3600.0


def admin(world: World, parameters: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run stock pulsar-admin with the plugin."""
    file = world.folder / "client.conf"
    file.write_text(f"webServiceUrl={world.broker.http}\nauthPlugin={PLUGIN}\nauthParams={parameters}\n")
    return run_tool(PULSAR_ADMIN, file, *words)


def test_pulsar_admin_gets_its_token_from_the_issuer(world: World) -> None:
    service = world.parameters("service")
    listed = admin(world, service, "tenants", "list")
    assert listed.returncode == 0 and "public" in listed.stdout, listed.stderr
    made = admin(world, service, "namespaces", "create", "public/judged")
    assert made.returncode == 0, made.stderr
    assert "public/judged" in world.rest("GET", "/admin/v2/namespaces/public")
    for refused in (
        admin(world, world.parameters("stranger"), "tenants", "list"),
        admin(world, world.parameters("service", audience="another"), "tenants", "list"),
    ):
        assert refused.returncode != 0 and "public" not in refused.stdout
