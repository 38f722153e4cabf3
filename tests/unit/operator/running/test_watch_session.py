"""How kopf reaches the API server: with whose credentials, and what it asks of children."""

import asyncio
import json
from pathlib import Path

import aiohttp
import kopf
import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.config import incluster_config

from quire_operator.running import watch_session
from quire_operator.running.watch_session import login_with

CHILDREN = frozenset({"pods"})


async def token_of(session: kopf.AiohttpSession) -> str:
    """Return the Authorization header of a session, and close it."""
    async with session.aiohttp_session as found:
        return found.headers["Authorization"]


def kubeconfig(folder: Path, server: str) -> str:
    """Write a kubeconfig."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


@pytest.fixture
def in_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files and variables of a pod's ServiceAccount; returns the file with the token."""
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("first")
    authority.write_bytes(trustme.CA().cert_pem.bytes())
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return token


async def test_kopf_logs_in_with_the_service_account_of_the_pod(in_pod: Path) -> None:
    login = login_with(None, CHILDREN)
    found = await login()
    assert found.server == "https://10.0.0.1:443"
    assert await token_of(found) == "Bearer first"
    await asyncio.to_thread(in_pod.write_text, "renewed")
    assert await token_of(await login()) == "Bearer renewed", "after a 401"


async def test_a_login_with_the_same_credentials_waits(
    in_pod: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch_session, "SAME_PAUSE_S", 0.0)
    login = login_with(None, CHILDREN)
    await token_of(await login())
    await asyncio.to_thread(in_pod.write_text, "renewed")
    await token_of(await login())
    assert "same credentials" not in caplog.text
    await token_of(await login())
    assert "same credentials" in caplog.text


async def test_kopf_logs_in_with_a_kubeconfig(tmp_path: Path) -> None:
    path = await asyncio.to_thread(kubeconfig, tmp_path, "https://api:6443")
    found = await login_with(path, CHILDREN)()
    assert found.server == "https://api:6443"
    assert await token_of(found) == "Bearer secret"


async def test_only_metadata_of_children_is_read(tmp_path: Path) -> None:
    accepted: list[str] = []

    async def respond(request: web.Request) -> web.Response:
        accepted.append(request.headers["Accept"].partition(";g=")[0])
        return web.json_response({"kind": "PartialObjectMetadataList", "items": None})

    app = web.Application()
    app.router.add_get("/{path:.*}", respond)
    async with TestServer(app) as server:
        path = await asyncio.to_thread(kubeconfig, tmp_path, str(server.make_url("")))
        found = await login_with(path, CHILDREN)()
        async with found.aiohttp_session as session:
            for asked in ("namespaces/a/pods?limit=1", "pods?watch=true", "bookies?watch=true", "namespaces/pods/jobs"):
                await read(session, f"{found.server}/{asked}")
    metadata = "application/json;as=PartialObjectMetadata"
    assert accepted == [f"{metadata}List", metadata, "*/*", "*/*"]


async def test_listed_objects_have_no_managed_fields(tmp_path: Path) -> None:
    async def respond(_: web.Request) -> web.Response:
        item = {"metadata": {"name": "a", "managedFields": [{"manager": "x"}]}}
        return web.json_response({"items": [item], "metadata": {"resourceVersion": "7"}})

    app = web.Application()
    app.router.add_get("/bookies", respond)
    async with TestServer(app) as server:
        path = await asyncio.to_thread(kubeconfig, tmp_path, str(server.make_url("")))
        found = await login_with(path, CHILDREN)()
        async with found.aiohttp_session as session, session.get(f"{found.server}/bookies") as answer:
            assert await answer.json() == {"items": [{"metadata": {"name": "a"}}], "metadata": {"resourceVersion": "7"}}


async def read(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as answer:
        assert (await answer.json())["items"] == [], "kopf would end"
