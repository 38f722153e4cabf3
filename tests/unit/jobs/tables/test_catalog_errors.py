"""An unavailable catalog is retried, with a bound; a wrong one is reported at once."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitStateUnknownException, ServiceUnavailableError
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from quire_jobs.errors import JobOptionsError, SourceUnavailableError
from quire_jobs.tables import TableTarget, catalog_errors, iceberg_table, once_per_run, open_table
from quire_jobs.tables.catalog_errors import is_unavailable, with_retries
from tests.unit.jobs.tables.conftest import SCHEMA, iceberg_target, ids_of, put, write

TRIES = 1 + len(catalog_errors.RETRY_DELAYS_S)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry without delays."""
    monkeypatch.setattr(catalog_errors, "RETRY_DELAYS_S", (0.0,) * (TRIES - 1))


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableTarget:
    """A table of a catalog in SQLite."""
    return iceberg_target(tmp_path, monkeypatch)


class RestCatalog:
    """An HTTP server that responds to everything with this status; `asked` counts the requests."""

    def __init__(self, status: int) -> None:
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                body = b'{"error": {"message": "as configured", "type": "E", "code": %d}}' % status
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Print nothing on standard error."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """Stop the server and wait for its thread."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], RestCatalog]]:
    """`answering(503)`: start the catalog `rest<port>`, which responds with 503."""
    servers: list[RestCatalog] = []

    def start(status: int) -> RestCatalog:
        server = RestCatalog(status)
        servers.append(server)
        name = f"REST{server.url.rpartition(':')[2]}"
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{name}__TYPE", "rest")
        monkeypatch.setenv(f"PYICEBERG_CATALOG__{name}__URI", server.url)
        return server

    yield start
    for server in servers:
        server.close()


def target_of(server: RestCatalog) -> TableTarget:
    return TableTarget.parse("iceberg", f"rest{server.url.rpartition(':')[2]}.a.b")


@pytest.mark.parametrize("status", [429, 500, 503, 504])
def test_an_unavailable_rest_catalog_is_retried_and_the_error_is_retryable(
    answering: Callable[[int], RestCatalog], status: int
) -> None:
    server = answering(status)
    with pytest.raises(SourceUnavailableError, match="as configured"):
        open_table(target_of(server))
    assert server.asked == TRIES


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_rest_catalog_that_refuses_is_asked_once(answering: Callable[[int], RestCatalog], status: int) -> None:
    server = answering(status)
    with pytest.raises(JobOptionsError, match="as configured"):
        open_table(target_of(server))
    assert server.asked == 1


def test_a_refused_connection_means_an_unavailable_catalog(answering: Callable[[int], RestCatalog]) -> None:
    server = answering(200)
    target = target_of(server)
    server.close()
    with pytest.raises(SourceUnavailableError, match="refused"):
        open_table(target)


def test_an_unavailable_database_is_distinguished_from_an_invalid_address() -> None:
    assert is_unavailable(OperationalError("select 1", {}, Exception("database is locked")))
    assert is_unavailable(DBAPIError("select 1", {}, Exception("server closed"), connection_invalidated=True))
    assert not is_unavailable(DBAPIError("select 1", {}, Exception("syntax")))
    assert not is_unavailable(ArgumentError("could not parse the URL"))
    assert not is_unavailable(PermissionError("/warehouse"))
    assert is_unavailable(ConnectionResetError("peer"))


def test_a_catalog_that_recovers_within_the_retries_is_used() -> None:
    answers: list[Exception | str] = [ServiceUnavailableError("busy"), OSError("reset"), "here"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert with_retries("t", ask) == "here"


class Shaky:
    """A real catalog whose commits fail as configured, before or after their effect."""

    def __init__(self, catalog: Any, failures: list[tuple[bool, Exception]]) -> None:
        self._catalog = catalog
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: Any) -> Any:
        """Return a table that commits through this object."""
        table = self._catalog.load_table(identifier)
        table.catalog = self
        return table

    def commit_table(self, *given: Any) -> Any:
        """Commit unless configured to fail before, and raise the configured error."""
        is_done, error = self._failures.pop(0) if self._failures else (True, None)
        found = self._catalog.commit_table(*given) if is_done else None
        if error is not None:
            raise error
        return found


def shaky(target: TableTarget, monkeypatch: pytest.MonkeyPatch, *failures: tuple[bool, Exception]) -> None:
    """Let the next commits fail as given."""
    real = iceberg_table._catalog(target.catalog)
    left = list(failures)
    monkeypatch.setattr(iceberg_table, "_catalog", lambda _name: Shaky(real, left))


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize(
    "error", [CommitStateUnknownException("504"), OperationalError("commit", {}, Exception("gone")), OSError("reset")]
)
def test_a_commit_without_a_response_is_in_the_table_once(
    target: TableTarget, monkeypatch: pytest.MonkeyPatch, is_done: bool, error: Exception
) -> None:
    put(target, range(3), once_per_run("a"))
    shaky(target, monkeypatch, (is_done, error), (False, error))
    assert put(target, range(3, 5), once_per_run("b")) is not None
    assert put(target, range(3, 5), once_per_run("b")) is None
    assert ids_of(target) == list(range(5))


def test_a_repetition_adds_the_rows_after_the_catalog_stayed_unavailable(
    target: TableTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(target, range(3), once_per_run("a"))
    table = open_table(target)
    files = write(table, range(3, 5))
    with monkeypatch.context() as patch:
        shaky(target, patch, *[(False, OSError("reset"))] * TRIES)
        with pytest.raises(SourceUnavailableError, match="reset; the outcome of the last commit is unknown"):
            open_table(target).commit(files, SCHEMA, once_per_run("b"), began_ms=1 << 62)
    assert ids_of(target) == list(range(3))
    assert put(target, range(3, 5), once_per_run("b")) is not None
    assert ids_of(target) == list(range(5))
