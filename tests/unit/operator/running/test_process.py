"""kopf within the process: on an API server that has no CRDs yet, and on one that refuses what kopf needs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from quire_operator.cluster.kube import Kube
from quire_operator.cluster.memory import Resources
from quire_operator.running import process
from quire_operator.running.handlers import RESOURCES
from quire_operator.running.passes import Defaults, Images
from quire_operator.running.process import OperatorSettings, WatchesEndedError

SERVED = {"resources": [{"name": name} for name in (*RESOURCES.values(), "bookies/status")]}
Answer = Callable[[web.Request], tuple[int, Any]]


@asynccontextmanager
async def api_server(folder: Path, answer: Answer) -> AsyncIterator[str]:
    """Serve these answers; yields a kubeconfig."""

    async def respond(request: web.Request) -> web.Response:
        status, body = answer(request)
        return web.json_response(body, status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", respond)
    async with TestServer(app) as server:
        path, url = folder / "kubeconfig", str(server.make_url("")).rstrip("/")
        config = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        await asyncio.to_thread(path.write_text, json.dumps(config))
        yield str(path)


async def test_it_waits_until_all_kinds_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "NOT_SERVED_PAUSE_S", 0.0)
    answers: list[tuple[int, Any]] = [
        (404, {"message": "no such group"}),
        (503, {"message": "not yet"}),
        (200, {"resources": [{"name": "bookies"}]}),
        (200, SERVED),
    ]
    async with api_server(tmp_path, lambda _: answers.pop(0)) as kubeconfig, await Kube.open(kubeconfig) as kube:
        async with asyncio.timeout(60):
            assert await process._served(kube, asyncio.Event())
    assert not answers


async def test_a_stop_ends_the_wait_for_the_kinds(tmp_path: Path) -> None:
    stop = asyncio.Event()

    def answer(_: web.Request) -> tuple[int, Any]:
        stop.set()
        return 404, {}

    async with api_server(tmp_path, answer) as kubeconfig, await Kube.open(kubeconfig) as kube:
        async with asyncio.timeout(60):
            assert not await process._served(kube, stop)


@pytest.mark.slow  # kopf waits five seconds for tasks that are not its own
async def test_an_error_that_ends_kopf_is_an_error_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ENDED_PAUSE_S", 0.0)
    asked: list[str] = []

    def answer(request: web.Request) -> tuple[int, Any]:
        asked.append(request.path)
        refused = request.path == "/apis"
        return (404, {"code": 404, "message": "no groups"}) if refused else (200, SERVED | {"versions": []})

    async with api_server(tmp_path, answer) as kubeconfig, await Kube.open(kubeconfig) as kube:
        settings = OperatorSettings(kubeconfig, "ns", "one", Defaults(Images("a", "b")))
        memo = kopf.Memo(wakes=None, resources=Resources())
        ended = asyncio.Event()
        with pytest.raises(WatchesEndedError, match="the watches ended: APINotFoundError"):
            async with asyncio.timeout(60):
                await process._watch(kube, settings, memo, asyncio.Event(), ended)
        assert not ended.is_set()
    assert "/apis" in asked, "kopf asked"
