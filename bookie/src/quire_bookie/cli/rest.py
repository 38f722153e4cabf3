"""Sends blocking HTTP requests to a running process, one at a time, for commands. Not used by servers.

Servers and jobs use `recovery.bookie_http`, whose library takes longer to import than most commands run.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire_bookie.cli.client_access import client_access
from quire_bookie.cli.refusals import NoAnswerError, RefusedError, refusal_of_status
from quire_bookie.env.bounded_body import IDENTITY, read_blocking_body, read_blocking_line
from quire_bookie.errors import ConfigError, PeerProtocolError
from quire_bookie.limits import HTTP_ANSWER_BYTES_MAX, HTTP_ANSWER_LINE_BYTES_MAX, KIB

if TYPE_CHECKING:
    from urllib.error import HTTPError

DEFAULT_HTTP = "http://localhost:8080"
TIMEOUT_S = 60.0
_REASON_BYTES_MAX = 64 * KIB
Http = Annotated[str, typer.Option("--http", help="HTTP address of the running process.", envvar="QUIRE_HTTP")]


def get(http: str, path: str) -> Any:
    """Return the decoded JSON of `path`. RefusedError with the server's reason; ConfigError for a wrong address."""
    return ask(http, "GET", path)


def ask(http: str, method: str, path: str, body: Any = None) -> Any:
    """Like `get`, with any method and a body sent as JSON. None if the response has no body."""
    # Imported here: `http.client` and its imports take longer than the rest of most commands.
    import urllib.error

    if not http.startswith(("http://", "https://")):
        raise ConfigError(f"--http {http}: expected http://host:port")
    try:
        data = None if body is None else json.dumps(body).encode()
        with _open(http, path, method, data) as answer:
            text = read_blocking_body(answer, HTTP_ANSWER_BYTES_MAX)
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        raise refusal_of_status(error.code, _reason(error)) from error
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise NoAnswerError(f"{http} does not answer ({reason}); is it running, with an HTTP port?") from error
    except PeerProtocolError as error:
        raise RefusedError(f"{http}{path}: {error}") from error
    except (OSError, ValueError) as error:
        raise RefusedError(f"{http} is not a Quire HTTP endpoint: {error}") from error


def lines(http: str, path: str) -> Iterator[Any]:
    """Yield JSON values as they arrive, one per line. Errors as `get`; RefusedError also if the response ends early."""
    import urllib.error

    if not http.startswith(("http://", "https://")):
        raise ConfigError(f"--http {http}: expected http://host:port")
    try:
        answer = _open(http, path)
    except urllib.error.HTTPError as error:
        raise refusal_of_status(error.code, _reason(error)) from error
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise NoAnswerError(f"{http} does not answer ({reason}); is it running, with an HTTP port?") from error
    except OSError as error:
        raise NoAnswerError(f"{http} does not answer: {error}") from error

    def found() -> Iterator[Any]:
        try:
            with answer:
                while line := read_blocking_line(answer, HTTP_ANSWER_LINE_BYTES_MAX):
                    yield json.loads(line)
        except (OSError, ValueError, PeerProtocolError) as error:
            raise RefusedError(f"{http}: the response ended early: {error}") from error

    return found()


def _open(http: str, path: str, method: str = "GET", data: bytes | None = None) -> Any:
    """Open the URL; the caller closes it. Redirects are followed with our token, but never from TLS to plaintext."""
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class Redirects(HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
            if req.full_url.startswith("https:") and not newurl.startswith("https:"):
                raise RefusedError(f"{req.full_url} redirects to {newurl} in plaintext, which would expose the token")
            if code in (307, 308):  # the same request, which urllib repeats only if it is a GET
                return Request(newurl, req.data, dict(req.headers), unverifiable=True, method=req.get_method())
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    access = client_access()
    context = access.context() if http.startswith("https://") else None
    headers = access.headers | IDENTITY | ({} if data is None else {"Content-Type": "application/json"})
    request = Request(http.rstrip("/") + path, data, headers, method=method)
    return build_opener(Redirects, HTTPSHandler(context=context)).open(request, timeout=TIMEOUT_S)


def _reason(error: "HTTPError") -> str:
    try:
        reason = str(json.loads(error.read(_REASON_BYTES_MAX))["reason"])
        return reason or f"{error.url}: HTTP {error.code} {error.reason}"
    except (ValueError, KeyError, TypeError):
        return f"{error.url}: HTTP {error.code} {error.reason}"
