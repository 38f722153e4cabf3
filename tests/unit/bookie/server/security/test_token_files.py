"""Tests that tokens can be withdrawn while the bookie runs: it reads the file again, and closes connections."""

import asyncio
from pathlib import Path

import jwt
import pytest

from quire_bookie.env.clock import SystemClock
from quire_bookie.env.local_disk import LocalDisk
from quire_bookie.errors import ConfigError
from quire_bookie.server.security.guard import Guard
from quire_bookie.server.security.opening import open_guard
from quire_bookie.settings.security import AuthKind, RoleSettings, SecuritySettings
from quire_bookie.settings.tokens import TokenSettings
from quire_bookie.tokens.checks import OpaqueTokens, TokenError, parse_tokens
from quire_bookie.tokens.files import TokenFile
from quire_bookie.wire.client_codec import v2_auth
from quire_bookie.wire.messages import AddResponse, AuthResponse, Status
from tests.unit.bookie.server.security.served import Client, Port, served, v2_add

FIRST, SECOND = "a" * 20, "b" * 20
SECRETS = [bytes([at]) * 40 for at in (1, 2)]
SOON_S = 0.01


class Content:
    """The content of a file; None: it cannot be read."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    async def read(self) -> bytes:
        if self.text is None:
            raise ConfigError("it is gone")
        return self.text.encode()


async def listed(content: Content) -> TokenFile:
    file = TokenFile("tokenStaticFile", content.read, lambda data: OpaqueTokens(parse_tokens(data.decode())))
    await file.open()
    return file


async def test_a_changed_file_is_loaded_and_an_unchanged_one_is_not() -> None:
    content = Content(f"reader {FIRST}\n")
    file = await listed(content)
    assert file.role_of(FIRST) == "reader"
    assert not await file.refresh() and file.stats.loads == 1
    content.text = f"writer {SECOND}\n"
    assert await file.refresh() and file.stats.loads == 2
    assert file.role_of(SECOND) == "writer"
    with pytest.raises(TokenError):
        file.role_of(FIRST)


@pytest.mark.parametrize("bad", [None, "", "# nothing\n", "reader short\n", "one two three\n"])
async def test_an_unusable_file_keeps_the_former_tokens_and_is_logged_once(
    bad: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    content = Content(f"reader {FIRST}\n")
    file = await listed(content)
    content.text = bad
    for _ in range(3):
        assert not await file.refresh()
    assert file.role_of(FIRST) == "reader"
    assert file.stats.load_failures == 3 and len(caplog.records) == 1
    content.text = f"reader {SECOND}\n"
    assert await file.refresh() and file.role_of(SECOND) == "reader"
    assert FIRST not in caplog.text and SECOND not in caplog.text


async def test_an_unusable_file_fails_the_start() -> None:
    with pytest.raises(ConfigError, match="no tokens"):
        await listed(Content(""))


async def guard_with(tokens: TokenSettings) -> Guard:
    settings = SecuritySettings(roles=RoleSettings(AuthKind.TOKEN, token=tokens))
    return await open_guard(settings, LocalDisk(), SystemClock())


async def enter(port: Port, token: str) -> Client:
    client = await port.client()
    answer = await client.ask_v2(v2_auth("token", token.encode()))
    assert isinstance(answer, AuthResponse) and answer.status is Status.OK
    return client


async def is_served(client: Client) -> bool:
    answer = await client.ask_v2(v2_add())
    return isinstance(answer, AddResponse) and answer.status is Status.OK


def replace(path: Path, content: bytes) -> None:
    """Replace a file as an administrator does it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.rename(path)


async def test_the_connection_of_a_removed_token_is_closed_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"reader {FIRST}\nwriter {SECOND}\n")
    guard = await guard_with(TokenSettings(tokens_path=str(path), refresh_s=SOON_S))
    async with served(guard) as port, asyncio.timeout(20):
        out, stays = await enter(port, FIRST), await enter(port, SECOND)
        gone = await enter(port, FIRST)
        gone.close()
        assert await is_served(out) and await is_served(stays)
        replace(path, f"writer {SECOND}\n".encode())
        assert await out.is_closed()
        assert await is_served(stays)
        late = await port.client()
        assert await late.ask_v2(v2_auth("token", FIRST.encode())) is None
    assert guard.stats.withdrawn in (1, 2), "the third connection may have been checked before it was gone"
    assert guard._watched == {}


async def test_a_changed_role_of_a_token_closes_its_connection(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"admin {FIRST}\n")
    guard = await guard_with(TokenSettings(tokens_path=str(path), refresh_s=SOON_S))
    async with served(guard) as port, asyncio.timeout(20):
        client = await enter(port, FIRST)
        replace(path, f"reader {FIRST}\n".encode())
        assert await client.is_closed()
        assert await is_served(await enter(port, FIRST))


async def test_a_new_secret_withdraws_every_token_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(SECRETS[0])
    guard = await guard_with(TokenSettings(secret_key=f"file://{path}", refresh_s=SOON_S))
    old, new = (jwt.encode({"sub": "broker"}, secret, "HS256") for secret in SECRETS)
    async with served(guard) as port, asyncio.timeout(20):
        client = await enter(port, old)
        replace(path, SECRETS[1])
        assert await client.is_closed()
        assert await is_served(await enter(port, new))
    assert guard.token_stats is not None and guard.token_stats.loads == 2


async def test_a_broken_file_closes_no_connection(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(SECRETS[0])
    guard = await guard_with(TokenSettings(secret_key=str(path), refresh_s=SOON_S))
    async with served(guard) as port, asyncio.timeout(20):
        client = await enter(port, jwt.encode({"sub": "broker"}, SECRETS[0], "HS256"))
        replace(path, b"short")
        assert guard.token_stats is not None
        while guard.token_stats.load_failures < 2:  # noqa: ASYNC110 - a count, not an event
            await asyncio.sleep(0)
        assert await is_served(client)


async def test_without_an_interval_nothing_is_watched(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(SECRETS[0])
    guard = await guard_with(TokenSettings(secret_key=str(path), refresh_s=0))
    assert guard._watched is None and guard.token_stats is None
    await guard.close()
