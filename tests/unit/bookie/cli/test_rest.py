"""Redirects that commands follow with their token, those that they refuse, and the limits of responses."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request

import pytest

from quire_bookie.cli import rest
from quire_bookie.cli.refusals import RefusedError
from tests.support.sized_answers import sized_answers

LIMIT = 100_000
"""Instead of the real limits, whose responses take a second to send."""


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(307)
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/here")  # type: ignore[attr-defined]
            self.end_headers()
            return
        body = json.dumps({"token": self.headers.get("Authorization")}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def http() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_redirect_is_followed_with_the_token(http: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_TOKEN", "abc")
    assert rest.get(http, "/away") == {"token": "Bearer abc"}
    assert list(rest.lines(http, "/here")) == [{"token": "Bearer abc"}]


@pytest.mark.parametrize("ask", [rest.get, rest.lines])
def test_a_redirect_from_tls_to_a_plaintext_port_is_refused(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def redirected(self: OpenerDirector, request: Request, timeout: float) -> Any:
        (handler,) = (one for one in self.handlers if isinstance(one, HTTPRedirectHandler))  # type: ignore[attr-defined]
        return handler.redirect_request(request, None, 307, "", {}, "http://b:1/here")  # type: ignore[arg-type]

    monkeypatch.setattr(OpenerDirector, "open", redirected)
    with pytest.raises(RefusedError, match="in plaintext"):
        ask("https://a:1", "/away")


async def test_a_response_of_the_limit_is_read_and_one_byte_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "HTTP_ANSWER_BYTES_MAX", LIMIT)
    async with sized_answers(LIMIT) as port:
        text = await asyncio.to_thread(rest.get, f"http://127.0.0.1:{port}", "/here")
        assert len(text) == LIMIT - 2
    async with sized_answers(LIMIT + 1) as port:
        with pytest.raises(RefusedError, match=f"/here: the response is larger than {LIMIT} byt"):
            await asyncio.to_thread(rest.get, f"http://127.0.0.1:{port}", "/here")


async def test_a_line_of_the_limit_is_read_and_one_byte_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "HTTP_ANSWER_LINE_BYTES_MAX", LIMIT)

    def read(port: int) -> list[Any]:
        return list(rest.lines(f"http://127.0.0.1:{port}", "/here"))

    async with sized_answers(LIMIT) as port:
        assert len(await asyncio.to_thread(read, port)) == 1
    async with sized_answers(LIMIT + 1) as port:
        with pytest.raises(RefusedError, match=f"longer than {LIMIT} bytes"):
            await asyncio.to_thread(read, port)
