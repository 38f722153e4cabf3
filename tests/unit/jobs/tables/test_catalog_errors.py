"""A catalog that is away is waited for, with a bound; one that is wrong is told as wrong, at once."""

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
from quire_jobs.tables.catalog_errors import is_away, patiently
from tests.unit.jobs.tables.conftest import SCHEMA, iceberg_target, ids_of, put, write

TRIES = 1 + len(catalog_errors.RETRY_DELAYS_S)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the waiting."""
    monkeypatch.setattr(catalog_errors, "RETRY_DELAYS_S", (0.0,) * (TRIES - 1))


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TableTarget:
    """Of a catalog in SQLite."""
    return iceberg_target(tmp_path, monkeypatch)


class RestCatalog:
    """Answers of a REST catalog's HTTP, each with this status; `asked` counts."""

    def __init__(self, status: int) -> None:
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                body = b'{"error": {"message": "as told", "type": "E", "code": %d}}' % status
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing on standard error."""

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """And wait for it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], RestCatalog]]:
    """`answering(503)`: the catalog `rest<port>` answers so."""
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
def test_a_rest_catalog_that_is_away_is_asked_again_and_a_later_run_may_find_it(
    answering: Callable[[int], RestCatalog], status: int
) -> None:
    server = answering(status)
    with pytest.raises(SourceUnavailableError, match="as told"):
        open_table(target_of(server))
    assert server.asked == TRIES


@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_rest_catalog_that_refuses_is_asked_once(answering: Callable[[int], RestCatalog], status: int) -> None:
    server = answering(status)
    with pytest.raises(JobOptionsError, match="as told"):
        open_table(target_of(server))
    assert server.asked == 1


def test_a_rest_catalog_that_nobody_listens_at_is_away(answering: Callable[[int], RestCatalog]) -> None:
    server = answering(200)
    target = target_of(server)
    server.close()
    with pytest.raises(SourceUnavailableError, match="refused"):
        open_table(target)


def test_a_database_that_is_away_and_an_address_that_is_none_are_told_apart() -> None:
    assert is_away(OperationalError("select 1", {}, Exception("database is locked")))
    assert is_away(DBAPIError("select 1", {}, Exception("server closed"), connection_invalidated=True))
    assert not is_away(DBAPIError("select 1", {}, Exception("syntax")))
    assert not is_away(ArgumentError("could not parse the URL"))
    assert not is_away(PermissionError("/warehouse"))
    assert is_away(ConnectionResetError("peer"))


def test_what_comes_back_in_time_is_used() -> None:
    answers: list[Exception | str] = [ServiceUnavailableError("busy"), OSError("reset"), "here"]

    def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert patiently("t", ask) == "here"


class Shaky:
    """A real catalog. Commits fail as told, before it has done them or after."""

    def __init__(self, catalog: Any, failures: list[tuple[bool, Exception]]) -> None:
        self._catalog = catalog
        self._failures = failures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def load_table(self, identifier: Any) -> Any:
        """A table that commits by us."""
        table = self._catalog.load_table(identifier)
        table.catalog = self
        return table

    def commit_table(self, *given: Any) -> Any:
        """As it is asked, or not."""
        is_done, error = self._failures.pop(0) if self._failures else (True, None)
        found = self._catalog.commit_table(*given) if is_done else None
        if error is not None:
            raise error
        return found


def shaky(target: TableTarget, monkeypatch: pytest.MonkeyPatch, *failures: tuple[bool, Exception]) -> None:
    """From now on."""
    real = iceberg_table._catalog(target.catalog)
    left = list(failures)
    monkeypatch.setattr(iceberg_table, "_catalog", lambda _name: Shaky(real, left))


@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize(
    "error", [CommitStateUnknownException("504"), OperationalError("commit", {}, Exception("gone")), OSError("reset")]
)
def test_a_commit_without_an_answer_is_in_the_table_once(
    target: TableTarget, monkeypatch: pytest.MonkeyPatch, is_done: bool, error: Exception
) -> None:
    put(target, range(3), once_per_run("a"))
    shaky(target, monkeypatch, (is_done, error), (False, error))
    assert put(target, range(3, 5), once_per_run("b")) is not None
    assert put(target, range(3, 5), once_per_run("b")) is None
    assert ids_of(target) == list(range(5))


def test_a_catalog_that_stays_away_ends_the_commit_and_a_repeat_adds_what_is_missing(
    target: TableTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(target, range(3), once_per_run("a"))
    table = open_table(target)
    files = write(table, range(3, 5))
    with monkeypatch.context() as patch:
        shaky(target, patch, *[(False, OSError("reset"))] * TRIES)
        with pytest.raises(SourceUnavailableError, match="reset; whether its last commit happened is not known"):
            open_table(target).commit(files, SCHEMA, once_per_run("b"), began_ms=1 << 62)
    assert ids_of(target) == list(range(3))
    assert put(target, range(3, 5), once_per_run("b")) is not None
    assert ids_of(target) == list(range(5))
