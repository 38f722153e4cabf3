"""Responses of an API server to a watch: events in chunks, an expired version, a refusal, a broken connection."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import ApiClient, Configuration

from quire_operator.cluster.kube import Kube
from quire_operator.errors import GoneError, KubeError, UnreachableError

BIG = "x" * 300_000
FORGOTTEN: dict[str, Any] = {
    "type": "ERROR",
    "object": {"kind": "Status", "code": 410, "message": "too old resource version"},
}


@asynccontextmanager
async def watching(pieces: list[bytes], *, status: int = 200, cut: bool = False) -> AsyncIterator[list[Any]]:
    """Return all events of one watch on a server that sends these chunks."""

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.query["allowWatchBookmarks"] == "true"
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        if cut and request.transport is not None:
            request.transport.abort()
        return response

    app = web.Application()
    app.router.add_get("/things", answer)
    async with TestServer(app) as server:
        configuration = Configuration()
        configuration.host = str(server.make_url("")).rstrip("/")
        async with Kube(ApiClient(configuration)) as kube:
            yield [event async for event in kube.watch("/things", "7")]


def line(event: dict[str, Any]) -> bytes:
    return json.dumps(event).encode() + b"\n"


async def test_events_are_reassembled_from_any_chunks() -> None:
    events = [{"type": "ADDED", "object": {"a": BIG}}, {"type": "BOOKMARK", "object": {}}]
    data = b"".join(line(event) for event in events)
    async with watching([data[:10], data[10:200_000], data[200_000:-1], data[-1:]]) as found:
        assert found == events


@pytest.mark.parametrize(("pieces", "status"), [([line(FORGOTTEN)], 200), ([line(FORGOTTEN["object"])], 410)])
async def test_an_expired_version_has_its_own_error(pieces: list[bytes], status: int) -> None:
    with pytest.raises(GoneError, match="too old"):
        async with watching(pieces, status=status):
            pass


async def test_a_refusal_is_a_kube_error() -> None:
    with pytest.raises(KubeError, match="forbidden") as refused:
        async with watching([b'{"message": "forbidden"}'], status=403):
            pass
    assert not isinstance(refused.value, GoneError)


async def test_a_connection_that_breaks_is_unreachable() -> None:
    with pytest.raises(UnreachableError):
        async with watching([line({"type": "ADDED", "object": {}})], cut=True):
            pass
