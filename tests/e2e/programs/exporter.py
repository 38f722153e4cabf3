"""Runs in a pod: shows metrics that a test makes up, and switches them between a healthy and an unhealthy value.

`/metrics` is for Prometheus; `/switch?to=bad` and `/switch?to=good` change every metric. `EXPORTER_SERIES` is a JSON
list of objects: `series` (name with labels), `good` and `bad`, and optionally `base`. A series with a base starts there
and grows by `good` or `bad` a second; another has that value.
"""

import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

PORT = 8080


class Series:
    """One series and its current value."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.name = given["series"]
        self.values = {"good": float(given["good"]), "bad": float(given["bad"])}
        self.grows = "base" in given
        self.value = float(given.get("base", given["good"]))

    def advance(self, state: str, seconds: float) -> None:
        """Bring the value up to date after `seconds` in a state."""
        self.value = self.value + self.values[state] * seconds if self.grows else self.values[state]


class Handler(BaseHTTPRequestHandler):
    """Responds in Prometheus' text format."""

    series: ClassVar[list[Series]] = []
    state: ClassVar[str] = "good"
    since_s: ClassVar[float] = time.monotonic()

    def do_GET(self) -> None:
        """Handle a request; a switch is a GET as well, as it comes through the API server's proxy."""
        parts = urlsplit(self.path)
        now_s = time.monotonic()
        for one in self.series:
            one.advance(Handler.state, now_s - Handler.since_s)
        Handler.since_s = now_s
        if parts.path == "/switch":
            Handler.state = parse_qs(parts.query)["to"][0]
            self._answer("application/json", json.dumps({"state": Handler.state}))
        else:
            self._answer("text/plain; version=0.0.4", "".join(f"{one.name} {one.value}\n" for one in self.series))

    def _answer(self, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log no requests."""


if __name__ == "__main__":
    Handler.series = [Series(one) for one in json.loads(os.environ["EXPORTER_SERIES"])]
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()
