"""The names by which an etcd member is found, and responses of peers that are not etcd."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from quire_operator.api.shared import MetadataStore
from quire_operator.cluster.etcd_gateway import ask_store, names_to_try


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("localhost", ["localhost"]),
        ("quire-etcd", ["quire-etcd.prod.svc"]),
        ("etcd-0.etcd", ["etcd-0.etcd.prod.svc", "etcd-0.etcd.svc", "etcd-0.etcd"]),
        ("quire-etcd.quire.svc", ["quire-etcd.quire.svc"]),
        ("quire-etcd.quire.svc.cluster.local", ["quire-etcd.quire.svc.cluster.local"]),
        ("etcd.example.com", ["etcd.example.com.prod.svc", "etcd.example.com.svc", "etcd.example.com"]),
    ],
)
def test_names_resolve_as_in_the_namespace_of_the_resource(host: str, names: list[str]) -> None:
    assert names_to_try(host, "prod") == names


async def answered(respond: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> str:
    kube: Any = None  # the store needs no Secret
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", respond)
    async with TestServer(app) as server:
        store = MetadataStore.model_validate({"endpoints": [f"127.0.0.1:{server.port}"]})
        [answer] = (await ask_store(kube, "ns", store)).values()
    assert answer.cluster_id is None
    return answer.error


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (200, "{}", "the response is not one of etcd: check host and port"),
        (200, "[]", "/v3/kv/range was refused (200): not a response of etcd; check host and port"),
        (404, '{"secret": 1}', "/v3/kv/range was refused (404): no message; check host and port"),
        (503, '{"error": "etcdserver: no leader"}', "refused (503): etcdserver: no leader"),
        (200, "<html>", "Expecting value"),
        (200, '{"header": {}, "kvs": [{"value": "?"}]}', "unexpected response from etcd"),
        (200, '{"header": {}, "kvs": [{}]}', "unexpected response from etcd"),
        (200, '{"header": {}, "kvs": [1]}', "unexpected response from etcd"),
    ],
)
async def test_other_peers_do_not_count_as_an_empty_store(status: int, body: str, error: str) -> None:
    async def respond(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type="application/json")

    assert error in await answered(respond)


async def test_a_redirect_is_not_followed() -> None:
    async def respond(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(str(request.url.with_path("/elsewhere")))

    assert "refused (307): not a response of etcd" in await answered(respond)
