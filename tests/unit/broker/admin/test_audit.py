"""The audit log: one line for each request that may change something, without secrets."""

import json
import logging
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from quire_broker.limits import AUDIT_CHARACTERS_MAX
from tests.security.test_broker_routes import Asked, token


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "quire.audit")

    def found() -> list[dict[str, Any]]:
        messages = [record.getMessage() for record in caplog.records if record.name == "quire.audit"]
        caplog.clear()
        assert all("\n" not in message for message in messages)
        return [json.loads(message) for message in messages]

    return found


async def ask(method: str, path: str, *, role: str | None = None, broker: Asked | None = None, **more: Any) -> int:
    headers = more.pop("headers", {}) | ({} if role is None else {"Authorization": f"Bearer {token(role)}"})
    app = (broker or Asked(authentication=True)).app
    app.cleanup_ctx.clear()  # the samples of the console need a running broker
    app.on_shutdown.clear()
    async with TestClient(TestServer(app)) as client, client.request(method, path, headers=headers, **more) as answer:
        return answer.status


async def test_a_change_has_a_line_with_its_role_address_and_outcome(lines: Any) -> None:
    status = await ask("PUT", "/admin/v2/tenants/t", role="root", json={"adminRoles": ["hidden"]})
    assert lines() == [
        {"role": "root", "client": "127.0.0.1", "method": "PUT", "path": "/admin/v2/tenants/t", "status": status}
    ]


@pytest.mark.parametrize(("role", "status"), [(None, 401), ("stranger", 403)])
async def test_a_refused_change_has_a_line(lines: Any, role: str | None, status: int) -> None:
    assert await ask("DELETE", "/admin/v2/tenants/t", role=role) == status
    (line,) = lines()
    assert (line["role"], line["status"]) == (role, status)


async def test_a_path_without_a_route_and_a_page_of_another_site_have_a_line(lines: Any) -> None:
    assert await ask("POST", "/admin/v2/nothing", role="root") == 404
    assert await ask("POST", "/admin/v2/tenants/t", role="root", headers={"Origin": "https://evil.example"}) == 403
    assert [line["status"] for line in lines()] == [404, 403]


async def test_a_proxy_and_its_client_are_both_named(lines: Any) -> None:
    await ask("DELETE", "/admin/v2/tenants/t", role="gate", headers={"X-Original-Principal": "stranger"})
    (line,) = lines()
    assert (line["role"], line["via"], line["status"]) == ("stranger", "gate", 403)


async def test_reading_and_publishing_have_no_line(lines: Any) -> None:
    await ask("GET", "/admin/v2/tenants", role="root")
    await ask("POST", "/admin/quire/topics/persistent/public/default/t/messages", role="stranger", json={})
    await ask("OPTIONS", "/admin/v2/tenants", role="root")
    assert lines() == []


async def test_nothing_secret_or_unbounded_is_written(lines: Any) -> None:
    await ask("PUT", "/admin/v2/tenants/" + "a%0Ab" * 200 + "?key=hidden", role="root", json={"password": "hidden"})
    await ask("PUT", "/admin/v2/tenants/t", headers={"Authorization": "Bearer hidden"})
    found = lines()
    assert len(found[0]["path"]) == AUDIT_CHARACTERS_MAX + 3 and found[1]["role"] is None
    assert "hidden" not in json.dumps(found) and "eyJ" not in json.dumps(found)


async def test_without_authentication_a_line_has_no_role(lines: Any) -> None:
    await ask("PUT", "/admin/v2/nothing", broker=Asked(authentication=False))
    assert [(line["role"], line["client"]) for line in lines()] == [(None, "127.0.0.1")]
