"""A small blocking client of the Kubernetes API for tests: paths and JSON in, status and JSON out."""

import base64
import json
import ssl
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TIMEOUT_S = 30
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server said."""

    status: int
    body: dict[str, Any]

    @property
    def ok(self) -> bool:
        """It did what was asked."""
        return self.status < 300

    @property
    def message(self) -> str:
        """Why not."""
        return str(self.body.get("message", ""))

    def expect(self) -> dict[str, Any]:
        """The body; AssertionError with the server's words when it refused."""
        assert self.ok, f"{self.status}: {self.message or self.body}"
        return self.body


class KubeApi:
    """An API server as a kubeconfig names it: its current context, with a token or a certificate."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        self.server = str(cluster["server"])
        self.kubeconfig = kubeconfig
        user = _named(config["users"], context["user"])["user"]
        self._token = user.get("token")
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE
        if "client-certificate-data" in user:
            with tempfile.NamedTemporaryFile() as chain:
                parts = (user["client-certificate-data"], user["client-key-data"])
                chain.write(b"\n".join(base64.b64decode(part) for part in parts))
                chain.flush()
                self._tls.load_cert_chain(chain.name)

    def call(
        self, method: str, path: str, body: Any = None, *, query: Mapping[str, str] | None = None, **headers: str
    ) -> Answer:
        """One request; `headers` with underscores for dashes."""
        url = self.server + path + ("?" + urllib.parse.urlencode(query) if query else "")
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), method=method)
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", headers.pop("content_type", "application/json"))
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as answer:
                data = answer.read()
                return Answer(answer.status, json.loads(data) if data else {})
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _refusal(error.read()))

    def get(self, path: str) -> Answer:
        """Read."""
        return self.call("GET", path)

    def text(self, path: str) -> str:
        """Read what is no JSON, a log for instance. urllib.error.HTTPError."""
        request = urllib.request.Request(self.server + path)
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=self._tls) as answer:
            found: str = answer.read().decode(errors="replace")
        return found

    def table(self, path: str) -> dict[str, Any]:
        """What `kubectl get` would show: column definitions and rows."""
        return self.call("GET", path, accept=TABLE).expect()

    def create(self, path: str, body: Mapping[str, Any]) -> Answer:
        """POST to a collection."""
        return self.call("POST", path, body)

    def merge(self, path: str, patch: Mapping[str, Any]) -> Answer:
        """A JSON merge patch."""
        return self.call("PATCH", path, patch, content_type="application/merge-patch+json")

    def apply(self, path: str, body: Mapping[str, Any], manager: str = "test") -> Answer:
        """Server-side apply."""
        query = {"fieldManager": manager, "force": "true"}
        return self.call("PATCH", path, body, query=query, content_type="application/apply-patch+yaml")


def _refusal(body: bytes) -> dict[str, Any]:
    """A Status; a path that nobody serves is answered with a line of text."""
    try:
        found: dict[str, Any] = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace").strip()}
    return found


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in items if item["name"] == name)
