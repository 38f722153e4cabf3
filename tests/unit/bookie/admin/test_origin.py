"""Requests of web pages: a browser sends them for any site that its user visits; programs send no such headers."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from quire_bookie.admin.origin import AllowedHosts, from_no_other_site

FORM = "application/x-www-form-urlencoded"
Status = Callable[..., Awaitable[int]]


@pytest.fixture
async def status() -> AsyncIterator[Status]:
    """Yield a function that returns the status of a request with given headers; 200 is the route's own."""

    async def handler(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[from_no_other_site])
    app.router.add_route("*", "/path", handler)
    async with TestClient(TestServer(app)) as client:

        async def ask(method: str = "GET", *, body: bytes | None = None, **headers: str) -> int:
            host = f"{client.host}:{client.port}"
            given = {name.replace("_", "-"): value.replace("HOST", host) for name, value in headers.items()}
            async with client.request(method, "/path", data=body, headers=given) as answer:
                return answer.status

        yield ask


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_a_page_of_another_site_is_refused(status: Status, method: str) -> None:
    for origin in ("https://evil.example", "http://localhost:3000", "null", "file://", "http://[", "", "HOST"):
        assert await status(method, Origin=origin) == 403, origin
    for site in ("cross-site", "same-site"):
        assert await status(method, Sec_Fetch_Site=site) == 403


async def test_programs_and_our_own_page_are_accepted(status: Status) -> None:
    assert await status() == 200
    assert await status(Sec_Fetch_Site="none") == 200
    assert await status("POST", Sec_Fetch_Site="same-origin", Origin="http://HOST") == 200
    assert await status("POST", Host="Broker.example:8443", Origin="https://broker.EXAMPLE:8443") == 200


@pytest.mark.parametrize("kind", ["text/plain", FORM, "multipart/form-data; boundary=x", "application/octet-stream"])
async def test_a_body_that_a_page_may_send_without_asking_is_refused(status: Status, kind: str) -> None:
    assert await status("POST", body=b'{"offloadBucket": "theirs"}', Content_Type=kind) == 415
    assert await status("POST", Content_Type=kind) == 200, "without a body its type is irrelevant"


@pytest.mark.parametrize("kind", ["application/json", "application/json;charset=utf-8", "application/vnd.x+json"])
async def test_json_is_accepted(status: Status, kind: str) -> None:
    assert await status("POST", body=b"{}", Content_Type=kind) == 200


@pytest.mark.parametrize(
    ("host", "good"),
    [
        ("localhost:8080", True),
        ("LOCALHOST", True),
        ("quire.localhost:1", True),
        ("127.0.0.1:8080", True),
        ("[::1]:8080", True),
        ("[fe80::1%25eth0]:8080", True),
        ("broker-0:8080", True),
        ("own.example", True),
        ("OWN.example.:8080", True),
        ("a.b.shop.example", True),
        ("shop.example", False),
        ("evilshop.example", False),
        ("evil.example:8080", False),
        ("127.0.0.1.evil.example", False),
        ("own.example.evil.example", False),
        ("", False),
        ("[", False),
    ],
)
def test_a_name_that_a_site_could_point_here_is_refused(host: str, good: bool) -> None:
    request = make_mocked_request("GET", "/", headers={"Host": host})
    hosts = AllowedHosts(("own.example", "*.shop.example"))
    assert (hosts.refusal(request) is None) is good
    assert AllowedHosts(("*",)).refusal(make_mocked_request("GET", "/", headers={"Host": "any.example"})) is None
    assert hosts.refusal(make_mocked_request("GET", "/")) is None, "HTTP/1.0 has no Host; browsers always send it"
