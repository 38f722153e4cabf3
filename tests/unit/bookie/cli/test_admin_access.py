"""Access rules of the admin HTTP ports by their settings: roles that may make changes, and roles of auto-recovery."""

import base64
import contextlib
import logging
import random
from pathlib import Path
from typing import Any, cast

import aiohttp
import jwt
import pytest

from quire_bookie.admin.access import AdminAccess
from quire_bookie.admin.listening import listen, port_of
from quire_bookie.admin.recovery_web import RecoveryWeb
from quire_bookie.cli.admin_access import admin_access, recovery_access
from quire_bookie.cli.security_settings import role_settings
from quire_bookie.config.auto_recovery import AutoRecoveryProcessConfig
from quire_bookie.config.bookie import BookieConfig
from quire_bookie.config.sources import load
from quire_bookie.env.clock import SystemClock
from quire_bookie.env.secret_file import SecretFiles
from quire_bookie.errors import ConfigError
from quire_bookie.server.security.opening import open_provider
from quire_bookie.settings.http import HttpLimits
from tests.sim.metadata import SimMetadata, SimMetadataStore

SECRET = b"s" * 32
STATUS = "/api/v1/autorecovery/status"
TOKENS = {
    "bookieAuthProviderFactoryClass": "token",
    "tokenSecretKey": f"data:;base64,{base64.b64encode(SECRET).decode()}",
}


def token(role: str, secret: bytes = SECRET) -> str:
    """Return a signed token of the role."""
    return jwt.encode({"sub": role}, secret, "HS256")


def recovery_config(keys: dict[str, str]) -> AutoRecoveryProcessConfig:
    """Return a checked configuration of auto-recovery."""
    assigned: dict[str, Any] = {str(AutoRecoveryProcessConfig.field_of(key)): value for key, value in keys.items()}
    return load(AutoRecoveryProcessConfig, flags={}, assigned=assigned, environment={}).config


async def bookie_access(keys: dict[str, str]) -> AdminAccess:
    """Return the rules of a bookie's port."""
    assigned: dict[str, Any] = {str(BookieConfig.field_of(key)): value for key, value in keys.items()}
    config = load(BookieConfig, flags={}, assigned=assigned, environment={}).config
    provider, _ = await open_provider(role_settings(config), SecretFiles(), SystemClock())
    return admin_access(config, provider, "bookie-0.example")


async def answers(access: AdminAccess, shown: str | None) -> tuple[int, int]:
    """Return the statuses of auto-recovery's port for a read and for a change, over a real connection."""
    store = SimMetadataStore(SimMetadata(random.Random(1), delay_s=(0.0, 0.0)))
    web = RecoveryWeb(store, cast(Any, None), SystemClock(), access)
    listening = listen("127.0.0.1", 0)
    await web.open(listening)
    url = f"http://127.0.0.1:{port_of(listening)}{STATUS}"
    headers = {} if shown is None else {"Authorization": f"Bearer {shown}"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(url) as read:
                first = read.status
            async with session.put(url + "?enabled=false") as change:
                return first, change.status
    finally:
        await web.close()


@pytest.mark.parametrize(
    ("keys", "outcomes"),
    [
        ({}, {None: (200, 200)}),
        (TOKENS, {None: (401, 401), "operator": (200, 403)}),
        (TOKENS | {"authorizedRoles": "operator"}, {None: (401, 401), "operator": (200, 200), "other": (401, 401)}),
        (
            TOKENS | {"authorizedRoles": "reader,operator", "httpServerAdminRoles": "operator"},
            {"reader": (200, 403), "operator": (200, 200), "other": (401, 401)},
        ),
        (TOKENS | {"httpServerAdminRoles": "operator"}, {"reader": (200, 403), "operator": (200, 200)}),
    ],
)
async def test_auto_recovery_requires_the_same_roles_as_a_bookie(
    keys: dict[str, str], outcomes: dict[str | None, tuple[int, int]]
) -> None:
    async with contextlib.AsyncExitStack() as undo:
        access = await recovery_access(recovery_config(keys), SystemClock(), undo)
        for role, expected in outcomes.items():
            assert await answers(access, None if role is None else token(role)) == expected, role
        if keys:
            assert await answers(access, token("operator", b"x" * 32)) == (401, 401)
        bookie = await bookie_access(keys)
        assert (bookie.admins, bookie.remote) == (access.admins, access.remote)


@pytest.mark.parametrize("of_bookie", [True, False])
@pytest.mark.parametrize("more", [{}, {"authorizedRoles": "a"}, {"httpServerAdminRoles": "a"}])
async def test_a_start_without_a_role_that_may_make_changes_is_reported(
    more: dict[str, str], of_bookie: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with contextlib.AsyncExitStack() as undo:
        if of_bookie:
            await bookie_access(TOKENS | more)
        else:
            await recovery_access(recovery_config(TOKENS | more), SystemClock(), undo)
    assert ("set httpServerAdminRoles" in caplog.text) is not bool(more)


async def test_a_token_removed_from_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"operator {'a' * 20}\n")
    keys = {"bookieAuthProviderFactoryClass": "token", "tokenStaticFile": str(file), "httpServerAdminRoles": "operator"}
    config = recovery_config(keys | {"tokenFilesRefreshDurationSeconds": "1"})
    async with contextlib.AsyncExitStack() as undo:
        access = await recovery_access(config, SystemClock(), undo)
        assert await answers(access, "a" * 20) == (200, 200)
        file.write_text(f"operator {'b' * 20}\n")
        while await answers(access, "a" * 20) != (401, 401):  # the suite's timeout ends it
            pass
        assert await answers(access, "b" * 20) == (200, 200)


async def test_a_port_accepts_its_own_host_name_and_allowed_ones() -> None:
    access = await bookie_access({"httpServerAllowedHosts": "admin.example,*.shop.example"})
    assert access.hosts.names[0] == "bookie-0.example"
    assert access.hosts.names[2:] == ("admin.example", "*.shop.example")
    async with contextlib.AsyncExitStack() as undo:
        own = await recovery_access(recovery_config({"autoRecoveryName": "worker.example"}), SystemClock(), undo)
        assert own.hosts.names[0] == "worker.example"


async def test_roles_from_certificates_need_a_port_that_requests_certificates() -> None:
    keys = {"bookieAuthProviderFactoryClass": "BookieAuthZFactory", "authorizedRoles": "operator"}
    async with contextlib.AsyncExitStack() as undo:
        with pytest.raises(ConfigError, match="httpServerTrustStorePath"):
            await recovery_access(recovery_config(keys), SystemClock(), undo)
        more = {"httpServerTlsEnable": "true", "httpServerKeystorePath": "/c", "httpServerTrustStorePath": "/t"}
        access = await recovery_access(recovery_config(keys | more), SystemClock(), undo)
        assert access.provider is not None and access.admins == ("operator",)


async def test_the_bounds_of_connections_reach_the_ports_of_bookies_and_auto_recovery() -> None:
    given = {"httpServerHeaderTimeoutMs": "1500", "httpServerMaxConnectionsPerAddress": "7"}
    assert (await bookie_access(given)).bounds == HttpLimits(1.5, 7)
    assert admin_access(recovery_config(given), None, "here").bounds == HttpLimits(1.5, 7)
