"""Rows of `quire bookie list`, also of a process that is older than the path of the places."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from quire_bookie.cli.main import run

GIB = 1 << 30
ANSWERS: dict[str, Any] = {
    "/api/v1/quire/drains": [],
    "/api/v1/bookie/list_bookie_info": {"b1": f": {{Free: {3 * GIB}, Total: {4 * GIB}}}"},
    "/api/v1/bookie/list_bookies?type=rw&print_hostnames=true": {"b1": "h1:3181"},
    "/api/v1/bookie/list_bookies?type=ro&print_hostnames=true": {},
}
PLACES = {"b1": {"machine": "h1", "rack": "/r1"}}


class _Server(HTTPServer):
    answers: dict[str, Any]


class _Answers(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        status, answer = self.server.answers.get(self.path, (404, {"reason": "Not Found"}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def server() -> Iterator[_Server]:
    server = _Server(("127.0.0.1", 0), _Answers)
    server.answers = {path: (200, answer) for path, answer in ANSWERS.items()}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def listed(server: _Server, capsys: pytest.CaptureFixture[str]) -> Any:
    assert run(["bookie", "list", "--http", f"http://127.0.0.1:{server.server_port}", "-o", "json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    return row


def test_a_process_that_tells_places_is_listed_with_them(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/api/v1/quire/places"] = (200, PLACES)
    row = listed(server, capsys)
    assert (row["machine"], row["rack"], row["used"]) == ("h1", "/r1", 0.25)


def test_an_older_process_is_listed_without_places(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    row = listed(server, capsys)
    assert (row["bookie"], row["address"], row["state"]) == ("b1", "h1:3181", "writable")
    assert row["machine"] is row["rack"] is None


def test_another_error_of_the_places_is_reported(server: _Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers["/api/v1/quire/places"] = (403, {"reason": "the role may not read this"})
    assert run(["bookie", "list", "--http", f"http://127.0.0.1:{server.server_port}"]) == 4
    assert "the role may not read this" in capsys.readouterr().err
