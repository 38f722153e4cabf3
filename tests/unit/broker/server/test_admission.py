"""Sessions of clients that must authenticate: commands before CONNECT, and validity of credentials later."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import jwt
import pytest

from quire_bookie.env.background import Background
from quire_bookie.env.connection_memory import ConnectionMemory
from quire_bookie.tokens.checks import SignedTokens, secret_algorithms
from quire_broker import limits
from quire_broker.errors import AuthenticationError
from quire_broker.security.authentication import Authentication
from quire_broker.security.authorization import Authorization
from quire_broker.security.credentials import Client, Found, Provider
from quire_broker.security.settings import AuthenticationSettings
from quire_broker.security.token_provider import TokenProvider
from quire_broker.server.budget import PublishBudget
from quire_broker.server.connection import Connection
from quire_broker.server.parts import ServerStats
from quire_broker.server.session import Session
from quire_broker.settings.clients import SessionSettings
from quire_broker.wire.frames import FrameDecoder, encode
from quire_broker.wire.kinds import Kind
from quire_broker.wire.proto import pulsar_pb2 as pb
from tests.sim.loop import SimLoop, simulate
from tests.unit.broker.server.test_connection import Transport

NOW_S = 1_700_000_000
SECRET = b"s" * 32


class Clock:
    """A clock that tests set."""

    now_s = NOW_S

    def now_ms(self) -> int:
        return self.now_s * 1000


class Scene:
    """One connection of a broker that requires tokens."""

    def __init__(
        self,
        *,
        authenticate_original: bool = False,
        authorization: Authorization | None = None,
        provider: Provider | None = None,
    ) -> None:
        self.clock = Clock()
        check = provider or TokenProvider(SignedTokens(SECRET, secret_algorithms(), self.clock))
        parts: Any = SimpleNamespace(
            settings=SessionSettings(),
            topic_lists=None,
            policies=None,
            memory=ConnectionMemory(),
            stats=ServerStats(),
            background=Background(),
            authentication=Authentication(
                AuthenticationSettings(authenticate_original=authenticate_original), [check], self.clock
            ),
            authorization=authorization,
            traces=None,
        )
        self.sessions: list[Session] = []

        def session(connection: Connection) -> Session:
            self.sessions.append(Session(parts, connection, self.sessions.remove))
            return self.sessions[-1]

        frame_bytes = SessionSettings().frame_bytes_max
        self.connection = Connection(PublishBudget(1 << 20), frame_bytes, 1e6, 10, session)
        self.transport = Transport()
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, **command: Any) -> None:
        self.connection.data_received(encode(pb.BaseCommand(**command)))

    def connect(self, token: str, *, refreshes: bool = True, **more: Any) -> None:
        hello = pb.CommandConnect(
            client_version="t",
            protocol_version=19,
            auth_method_name="token",
            auth_data=token.encode(),
            feature_flags=pb.FeatureFlags(supports_auth_refresh=refreshes),
            **more,
        )
        self.send(type=Kind.CONNECT, connect=hello)

    @property
    def role(self) -> str:
        """The role of the session's client."""
        return self.sessions[0]._rights().role

    def respond(self, token: str) -> None:
        data = pb.AuthData(auth_method_name="token", auth_data=token.encode())
        self.send(type=Kind.AUTH_RESPONSE, auth_response=pb.CommandAuthResponse(response=data))

    def look(self) -> None:
        for session in list(self.sessions):
            session.check_credentials(keys_changed=False)

    @property
    def heard(self) -> list[int]:
        frames: list[Any] = FrameDecoder(1 << 20).feed(bytes(self.transport.sent))
        return [frame.type for frame in frames]


def token(role: str = "app", **claims: object) -> str:
    return jwt.encode({"sub": role, **claims}, SECRET)


PROXIES: Any = Authorization(None, frozenset(), frozenset({"proxy"}))  # type: ignore[arg-type]  # names decide


def play(work: Callable[[Scene], Awaitable[None]], **given: Any) -> None:
    async def scenario(loop: SimLoop) -> None:
        await work(Scene(**given))

    simulate(scenario, seed=1)


def test_only_a_valid_token_opens_a_session() -> None:
    async def work(scene: Scene) -> None:
        scene.connect(token())
        scene.send(type=Kind.PING, ping=pb.CommandPing())
        assert (scene.heard, scene.transport.closed) == ([Kind.CONNECTED, Kind.PONG], False)

    play(work)


@pytest.mark.parametrize(
    "command",
    [
        {"type": Kind.PING, "ping": pb.CommandPing()},
        {"type": Kind.LOOKUP, "lookup": pb.CommandLookupTopic(topic="t", request_id=1)},
        {"type": Kind.AUTH_RESPONSE, "auth_response": pb.CommandAuthResponse()},
        {"type": Kind.GET_SCHEMA, "get_schema": pb.CommandGetSchema(topic="t", request_id=1)},
    ],
)
def test_commands_before_connect_are_not_answered(command: dict[str, Any]) -> None:
    async def work(scene: Scene) -> None:
        scene.send(**command)
        assert (scene.heard, scene.transport.closed) == ([], True)

    play(work)


def test_commands_after_a_refused_connect_in_the_same_buffer_are_ignored() -> None:
    async def work(scene: Scene) -> None:
        hello = pb.CommandConnect(client_version="t", auth_method_name="token", auth_data=b"no")
        more = encode(pb.BaseCommand(type=Kind.PING, ping=pb.CommandPing()))
        scene.connection.data_received(encode(pb.BaseCommand(type=Kind.CONNECT, connect=hello)) + more)
        assert (scene.heard, scene.transport.closed) == ([Kind.ERROR], True)

    play(work)


@pytest.mark.parametrize(
    ("role", "original"),
    [("app", "admin"), ("app", "app"), ("proxy", ""), ("proxy", "proxy"), ("proxy", "a\nb"), ("proxy", "a" * 257)],
)
def test_only_a_proxy_acts_for_another_role_and_it_must_name_one(role: str, original: str) -> None:
    async def work(scene: Scene) -> None:
        scene.connect(token(role), original_principal=original)
        assert (scene.heard, scene.transport.closed) == ([Kind.ERROR], True)

    play(work, authorization=PROXIES)


def test_the_session_of_a_proxy_is_that_of_its_client() -> None:
    async def work(scene: Scene) -> None:
        scene.connect(token("proxy"), original_principal="app")
        assert scene.heard == [Kind.CONNECTED]
        assert scene.role == "app"

    play(work, authorization=PROXIES)


def test_a_broker_leads_to_no_other_broker() -> None:
    async def work(scene: Scene) -> None:
        scene.connect(token("proxy"), original_principal="app", proxy_to_broker_url="broker-2:6650")
        assert (scene.heard, scene.transport.closed) == ([Kind.ERROR], True)

    play(work, authorization=PROXIES)


@pytest.mark.parametrize(
    "passed_on",
    [{}, {"original_auth_method": "token"}, {"original_auth_method": "token", "original_auth_data": "no token"}],
)
def test_a_proxy_must_pass_on_a_valid_token_where_brokers_check_it(passed_on: dict[str, Any]) -> None:
    async def work(scene: Scene) -> None:
        scene.connect(token("proxy"), original_principal="admin", **passed_on)
        assert (scene.heard, scene.transport.closed) == ([Kind.ERROR], True)

    play(work, authorization=PROXIES, authenticate_original=True)


def test_the_token_that_a_proxy_passes_on_decides_the_role_and_is_replaced_when_it_expires() -> None:
    async def work(scene: Scene) -> None:
        shown: dict[str, Any] = {"original_auth_method": "token", "original_auth_data": token("app", exp=NOW_S + 5)}
        scene.connect(token("proxy", exp=NOW_S + 60), original_principal="admin", **shown)
        assert scene.role == "app", "the name that the proxy gives is not trusted"
        scene.clock.now_s += 5
        scene.look()
        assert scene.heard == [Kind.CONNECTED, Kind.AUTH_CHALLENGE]
        scene.respond(token("app", exp=NOW_S + 90))
        scene.look()
        assert not scene.transport.closed
        scene.clock.now_s += 60
        scene.look()
        assert scene.transport.closed, "the token of the proxy itself has expired"

    play(work, authorization=PROXIES, authenticate_original=True)


def test_frames_are_small_until_the_client_is_authenticated() -> None:
    async def work(scene: Scene) -> None:
        large = (limits.UNAUTHENTICATED_FRAME_BYTES_MAX + 1).to_bytes(4, "big") + (4).to_bytes(4, "big")
        stranger = Scene()
        stranger.connection.data_received(large)
        assert stranger.transport.closed, "before more memory is used for it"
        scene.connect(token())
        scene.connection.data_received(large)
        assert not scene.transport.closed

    play(work)


def test_a_silent_client_is_disconnected() -> None:
    async def work(scene: Scene) -> None:
        await asyncio.sleep(limits.UNAUTHENTICATED_S - 1)
        assert not scene.transport.closed
        await asyncio.sleep(2)
        assert scene.transport.closed

    play(work)


def test_an_expired_token_must_be_replaced_by_one_of_the_same_role() -> None:
    async def work(scene: Scene) -> None:
        scene.connect(token(exp=NOW_S + 5))
        scene.look()
        assert scene.heard == [Kind.CONNECTED]
        scene.clock.now_s += 5
        scene.look()
        assert scene.heard == [Kind.CONNECTED, Kind.AUTH_CHALLENGE]
        scene.respond(token(exp=NOW_S + 60))
        scene.look()
        assert not scene.transport.closed
        scene.respond(token("admin"))  # not requested: ignored
        assert not scene.transport.closed
        scene.clock.now_s += 60
        scene.look()
        scene.respond(token("admin"))
        assert scene.heard[2:] == [Kind.AUTH_CHALLENGE, Kind.ERROR]
        assert scene.transport.closed

    play(work)


@pytest.mark.parametrize("refreshes", [True, False])
def test_a_client_without_another_token_is_disconnected(refreshes: bool) -> None:
    async def work(scene: Scene) -> None:
        scene.connect(token(exp=NOW_S + 5), refreshes=refreshes)
        scene.clock.now_s += 5
        scene.look()
        assert scene.transport.closed is not refreshes
        scene.look()
        assert scene.transport.closed

    play(work)


class Slow:
    """A provider whose checks end at an event."""

    method = "token"

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    def admit(self, shown: str) -> Found:
        async def check() -> Client:
            await self.may_end.wait()
            if shown == "bad":
                raise AuthenticationError("no such token")
            return Client(shown, "token", NOW_S * 1000 + 5000, provider=self)

        return check

    def is_good(self, client: Client) -> bool:
        return True

    async def refresh(self) -> bool:
        return False


def slowly(work: Callable[[Scene, Slow], Awaitable[None]], **given: Any) -> None:
    async def scenario(loop: SimLoop) -> None:
        provider = Slow()
        await work(Scene(provider=provider, **given), provider)

    simulate(scenario, seed=1)


def test_a_client_is_answered_when_the_check_of_its_credentials_ends() -> None:
    async def work(scene: Scene, slow: Slow) -> None:
        scene.connect("app")
        await asyncio.sleep(limits.UNAUTHENTICATED_S - 1)
        assert (scene.heard, scene.transport.closed) == ([], False)
        slow.may_end.set()
        await asyncio.sleep(0.1)
        scene.send(type=Kind.PING, ping=pb.CommandPing())
        assert (scene.heard, scene.role) == ([Kind.CONNECTED, Kind.PONG], "app")
        await asyncio.sleep(limits.UNAUTHENTICATED_S)
        assert not scene.transport.closed

    slowly(work)


def test_a_client_whose_check_fails_or_lasts_too_long_is_refused() -> None:
    async def refused(scene: Scene, slow: Slow) -> None:
        scene.connect("bad")
        slow.may_end.set()
        await asyncio.sleep(0.1)
        assert (scene.heard, scene.transport.closed) == ([Kind.ERROR], True)

    async def late(scene: Scene, slow: Slow) -> None:
        scene.connect("app")
        await asyncio.sleep(limits.UNAUTHENTICATED_S + 1)
        assert (scene.heard, scene.transport.closed) == ([Kind.ERROR], True)
        slow.may_end.set()
        await asyncio.sleep(0.1)
        assert scene.heard == [Kind.ERROR]

    slowly(refused)
    slowly(late)


@pytest.mark.parametrize(
    "command",
    [
        {"type": Kind.PING, "ping": pb.CommandPing()},
        {"type": Kind.CONNECT, "connect": pb.CommandConnect(client_version="t")},
        {"type": Kind.LOOKUP, "lookup": pb.CommandLookupTopic(topic="t", request_id=1)},
    ],
)
def test_a_client_that_sends_commands_before_its_check_ends_is_disconnected_unanswered(command: dict[str, Any]) -> None:
    async def work(scene: Scene, slow: Slow) -> None:
        scene.connect("app")
        scene.send(**command)
        slow.may_end.set()
        await asyncio.sleep(0.1)
        assert (scene.heard, scene.transport.closed) == ([], True)

    slowly(work)


def test_both_a_proxy_and_its_client_are_checked_before_the_answer() -> None:
    async def work(scene: Scene, slow: Slow) -> None:
        scene.connect("proxy", original_principal="ignored", original_auth_method="token", original_auth_data="app")
        await asyncio.sleep(1)
        slow.may_end.set()
        await asyncio.sleep(0.1)
        assert (scene.heard, scene.role) == ([Kind.CONNECTED], "app")

    slowly(work, authenticate_original=True, authorization=PROXIES)


def test_a_new_token_whose_check_takes_time_replaces_the_expired_one() -> None:
    async def work(scene: Scene, slow: Slow) -> None:
        slow.may_end.set()
        scene.connect("app")
        await asyncio.sleep(0.1)
        scene.clock.now_s += 5
        scene.look()
        slow.may_end.clear()
        scene.respond("app")
        await asyncio.sleep(1)
        slow.may_end.set()
        await asyncio.sleep(0.1)
        scene.clock.now_s -= 5
        scene.look()
        assert (scene.heard, scene.transport.closed) == ([Kind.CONNECTED, Kind.AUTH_CHALLENGE], False)
        scene.clock.now_s += 5
        scene.look()
        scene.respond("other")
        await asyncio.sleep(0.1)
        assert (scene.heard[2:], scene.transport.closed) == ([Kind.AUTH_CHALLENGE, Kind.ERROR], True)

    slowly(work)
