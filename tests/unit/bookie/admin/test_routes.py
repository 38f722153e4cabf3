"""The table of routes: a route without a permission prevents the start; HEAD is answered as GET."""

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from quire_bookie.admin.routes import ROUTES, Need, Route, register
from quire_bookie.errors import StartupError


async def answer(request: web.Request) -> web.Response:
    return web.Response(text=request.method)


async def test_an_application_with_a_route_that_declares_no_permission_does_not_start() -> None:
    app = web.Application()
    register(app, ROUTES, [Route("GET", "/declared", answer, Need.READ)])
    app.add_routes([web.put("/forgotten/{id}", answer)])
    runner = web.AppRunner(app)
    with pytest.raises(StartupError, match=r"PUT /forgotten/\{id\} declares no permission"):
        await runner.setup()
    await runner.cleanup()


async def test_head_is_answered_as_get_and_needs_the_same() -> None:
    app = web.Application()
    register(app, ROUTES, [Route("GET", "/a", answer, Need.READ), Route("PUT", "/a", answer, Need.CHANGE)])
    needs = {route.method: declared.need for route, declared in app[ROUTES].items()}
    assert needs == {"GET": Need.READ, "HEAD": Need.READ, "PUT": Need.CHANGE}
    async with TestClient(TestServer(app)) as client:
        assert (await client.head("/a")).status == 200
        assert await (await client.put("/a")).text() == "PUT"
