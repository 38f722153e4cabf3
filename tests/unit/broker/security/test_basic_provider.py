"""Authentication by user and password: when a check waits, what is remembered, and what a changed file does."""

import asyncio
import threading

import bcrypt
import pytest

from quire_bookie.tokens.files import CredentialFile
from quire_broker.errors import AuthenticationError
from quire_broker.limits import PASSWORD_CHECKS_MAX
from quire_broker.security.basic_provider import BasicProvider
from quire_broker.security.credentials import Client, settled
from quire_broker.security.passwords import is_password, users_of


def line(user: str, password: str) -> bytes:
    return f"{user}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n".encode()


class Users:
    """A provider and its file."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    async def open(self) -> BasicProvider:
        async def read() -> bytes:
            return self.content

        file = CredentialFile("basicAuthConf", read, users_of)
        await file.open()
        return BasicProvider(file, b"k" * 32)


async def test_a_right_password_is_checked_once_and_then_known_at_once() -> None:
    provider = await Users(line("app", "one:two")).open()
    assert not isinstance(provider.admit("app:one:two"), Client)
    first = await settled(provider.admit("app:one:two"))
    assert (first.role, first.method, first.end_ms) == ("app", "basic", None)
    assert provider.admit("app:one:two") == first
    assert "$2b$" not in repr(first)


@pytest.mark.parametrize("shown", ["app:wrong", "app:", "other:right", "App:right"])
async def test_an_unknown_user_and_a_wrong_password_get_one_answer_and_are_not_remembered(shown: str) -> None:
    provider = await Users(line("app", "right")).open()
    await settled(provider.admit("app:right"))
    for _ in range(2):
        with pytest.raises(AuthenticationError, match=r"^unknown user or wrong password$"):
            await settled(provider.admit(shown))


@pytest.mark.parametrize("shown", ["", "app", ":right"])
async def test_credentials_of_another_form_are_refused_at_once(shown: str) -> None:
    provider = await Users(line("app", "right")).open()
    with pytest.raises(AuthenticationError, match="user:password"):
        provider.admit(shown)


async def test_a_changed_password_ends_the_old_one() -> None:
    users = Users(line("app", "old") + line("other", "same"))
    provider = await users.open()
    app, other = [await settled(provider.admit(shown)) for shown in ("app:old", "other:same")]
    assert not await provider.refresh()
    kept = users.content.splitlines(keepends=True)[1]
    users.content = line("app", "new") + kept
    assert await provider.refresh()
    assert (provider.is_good(app), provider.is_good(other)) == (False, True)
    with pytest.raises(AuthenticationError):
        await settled(provider.admit("app:old"))
    assert (await settled(provider.admit("app:new"))).role == "app"
    users.content = kept
    await provider.refresh()
    with pytest.raises(AuthenticationError):
        await settled(provider.admit("app:new"))


async def test_a_file_that_becomes_invalid_changes_nothing() -> None:
    users = Users(line("app", "right"))
    provider = await users.open()
    users.content = b"app:plain"
    assert not await provider.refresh()
    assert (await settled(provider.admit("app:right"))).role == "app"


async def test_few_checks_wait_and_the_loop_goes_on_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = await Users(line("app", "right")).open()
    may_end = threading.Event()

    def slow(password: str, stored: str) -> bool:
        may_end.wait(60)
        return is_password(password, stored)

    monkeypatch.setattr("quire_broker.security.basic_provider.is_password", slow)
    checks = [asyncio.ensure_future(settled(provider.admit("app:right"))) for _ in range(PASSWORD_CHECKS_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(AuthenticationError, match="too many"):
        await settled(provider.admit("app:right"))
    checks.pop().cancel()
    await asyncio.sleep(0)
    late = asyncio.ensure_future(settled(provider.admit("app:right")))
    may_end.set()
    assert {client.role for client in await asyncio.gather(*checks, late)} == {"app"}


async def test_the_remembered_passwords_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire_broker.security.basic_provider.PASSWORDS_REMEMBERED_MAX", 2)
    provider = await Users(b"".join(line(user, "p") for user in "abc")).open()
    for user in "abc":
        await settled(provider.admit(f"{user}:p"))
    assert [isinstance(provider.admit(f"{user}:p"), Client) for user in "abc"] == [False, True, True]
