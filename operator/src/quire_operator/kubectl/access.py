"""Accesses the API server as a user: objects, logs, and the HTTP ports of pods through its proxy. Decides nothing.

Pods are reached through the API server, so a user needs no access to the cluster's network, only permissions for
`pods/proxy` (and `pods/log` for a report).
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.config_exception import ConfigException

from quire_operator.builders import Manifest, ReadManifest
from quire_operator.builders.naming import CONTAINER
from quire_operator.cluster.bounded_body import read_body
from quire_operator.cluster.kube import CONNECT_TIMEOUT_S, NO_HEADERS, Kube, refusal
from quire_operator.cluster.paths import collection, object_path
from quire_operator.cluster.paths import plain as plain_name
from quire_operator.errors import KubeError, OperatorError, UnreachableError

PROXY_TIMEOUT_S = 70.0
PROXIED = "Quire-Authorization"
"""Header for the token instead of Authorization, which the API server's proxy consumes."""
_NAMES = b"httpServerAllowedHosts"
"""In the error of a process that refuses the name in the Host header."""
CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    """The response of a pod. `body`: decoded JSON, or else the text."""

    status: int
    body: Any


class Cluster(Kube):
    """A connection to the API server. Create it with `reach`, then use it within `async with cluster`."""

    namespace: str = "default"
    token: str = ""
    """Token for requests to pods, of a role that bookies and brokers accept; empty for none."""

    @classmethod
    async def reach(
        cls, kubeconfig: str | None, context: str | None, namespace: str | None, token: str = ""
    ) -> "Cluster":
        """Read the kubeconfig, its current context and namespace like `kubectl`, unless given. Raises OperatorError.

        `token`: the value of QUIRE_TOKEN, a token or file:///path.
        """
        configuration, loading = Configuration(), cast(Any, config)
        if kubeconfig is not None and not Path(kubeconfig).is_file():  # noqa: ASYNC240 - once, at the start of a command
            raise OperatorError(f"no access to a cluster: the file {kubeconfig} does not exist")
        try:
            await loading.load_kube_config(
                config_file=kubeconfig, context=context, client_configuration=configuration, persist_config=False
            )
            contexts, active = loading.list_kube_config_contexts(kubeconfig)
        except (ConfigException, OSError) as error:
            raise OperatorError(f"no access to a cluster: {error}") from error
        found = cls(ApiClient(configuration))
        chosen = next((one for one in contexts if one["name"] == context), active)
        found.token = await asyncio.to_thread(_token, token)
        found.namespace = namespace or chosen["context"].get("namespace") or "default"
        return found

    async def ask_pod(
        self, pod: ReadManifest, path: str, *, method: str = "GET", body: ReadManifest | None = None
    ) -> Response:
        """Send a request to the HTTP port of a Quire pod through the API server. Raises KubeError, UnreachableError."""
        metadata = pod["metadata"]
        scheme, port = http_of(pod)
        name = plain_name(f"{scheme}:{metadata['name']}:{port}" if scheme == "https" else f"{metadata['name']}:{port}")
        plain, _, query = path.partition("?")
        where = f"{collection('v1', 'Pod', metadata['namespace'])}/{name}/proxy{plain}"
        pairs = dict(part.partition("=")[::2] for part in query.split("&")) if query else None
        status, data = await self._raw(method, where, pairs, body)
        if status == 403 and _NAMES in data and (address := (pod.get("status") or {}).get("podIP")):
            # The proxy sends the API server's Host, which a process without tokens does not accept as its own.
            own = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            status, data = await self._raw(method, where, pairs, body, {"Host": own})
        decoded = _decoded(data)
        if isinstance(decoded, dict) and decoded.get("kind") == "Status" and decoded.get("apiVersion") == "v1":
            raise KubeError(status, f"could not reach {metadata['name']}: {decoded.get('message', '')}")
        return Response(status, decoded)

    async def log_of(self, namespace: str, pod: str, container: str, *, lines: int, previous: bool) -> str | None:
        """Return the last log lines of a container, or None if there is no log. Raises UnreachableError."""
        query = {"container": container, "tailLines": str(lines), "timestamps": "true"}
        query |= {"previous": "true"} if previous else {}
        status, data = await self._raw("GET", f"{object_path('v1', 'Pod', namespace, pod)}/log", query, None)
        return data.decode(errors="replace") if status == 200 else None

    async def stream_log(
        self, pod: str, container: str, write: Callable[[bytes], object], *, lines: int, follow: bool
    ) -> None:
        """Write the last log lines of a container in the namespace; with `follow`, also new ones until it ends.

        Raises KubeError if there is no log (yet), and UnreachableError, also if the connection breaks.
        """
        path = f"{object_path('v1', 'Pod', self.namespace, pod)}/log"
        query = {"container": container, "tailLines": str(lines)} | ({"follow": "true"} if follow else {})
        # A waiting driver may write nothing for hours; the user ends the command.
        timeout = aiohttp.ClientTimeout(total=None if follow else PROXY_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        async with self._asking("GET", path, None, "application/json", query, "*/*", timeout) as answer:
            if answer.status != 200:
                raise refusal(answer.status, f"no log of {pod}", await answer.read())
            async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                write(chunk)

    async def _raw(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: ReadManifest | None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[int, bytes]:
        timeout = aiohttp.ClientTimeout(total=PROXY_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        shown = {**headers, **({PROXIED: f"Bearer {self.token}"} if self.token else {})}
        async with self._asking(method, path, body, "application/json", query, "*/*", timeout, shown) as answer:
            try:
                return answer.status, await read_body(answer)
            except ValueError as error:
                answer.close()
                raise UnreachableError(f"{method} {path}: {error}") from error


def _decoded(data: bytes) -> Any:
    """Decode JSON, or else return the text."""
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace").strip()


def _token(given: str) -> str:
    """Return the token, read from its file if given as a URL. OperatorError if the file cannot be read."""
    if not given.startswith("file:"):
        return given.strip()
    path = "/" + given.removeprefix("file:").lstrip("/")
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OperatorError(f"QUIRE_TOKEN: the file {path} cannot be read: {error}") from error


def http_of(pod: ReadManifest) -> tuple[str, int]:
    """Return scheme and port of a pod's HTTP port, from its readiness probe. OperatorError if it is not a Quire pod."""
    containers: list[Manifest] = list(pod["spec"].get("containers", ()))
    main = next((one for one in containers if one["name"] == CONTAINER), None)
    probe = (main or {}).get("readinessProbe", {}).get("httpGet")
    if main is None or probe is None:
        raise OperatorError(f"{pod['metadata']['name']} is not a Quire pod: it has no readiness probe over HTTP")
    port = probe["port"]
    if isinstance(port, str):
        port = next((one["containerPort"] for one in main.get("ports", ()) if one.get("name") == port), None)
    if port is None:
        raise OperatorError(f"{pod['metadata']['name']}: its HTTP port {probe['port']} is not defined")
    return str(probe.get("scheme", "HTTP")).lower(), int(port)
