"""Client of the API server with plain paths and dicts. Owns the connection; credentials and TLS are from `kubernetes`.

Objects stay dicts: generated classes would drop unknown fields.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.config_exception import ConfigException

from quire_operator.api.shared import Metadata
from quire_operator.builders import Manifest, ReadManifest
from quire_operator.builders.naming import FIELD_MANAGER
from quire_operator.cluster.paths import manifest_path
from quire_operator.errors import ConflictError, GoneError, KubeError, OperatorError, UnreachableError

REQUEST_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 10.0
NO_HEADERS: Mapping[str, str] = {}
PAGE_ITEMS = 500
WATCH_BYTES_MAX = 8 * 1024 * 1024
"""Limit of one event, above the size of the API server's largest object."""
_JSON = "application/json"
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_PARTIAL = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"
"""Requests only the metadata of objects, a tenth of their size."""
_NOT_FOUND, _CONFLICT, _GONE = 404, 409, 410
_KINDS = {_CONFLICT: ConflictError, _GONE: GoneError}


class Kube:
    """A connection to an API server. `async with await Kube.open() as kube`."""

    def __init__(self, client: ApiClient) -> None:
        """Wrap a client; use `open` instead."""
        self._client: Any = client  # the library's type annotations are incomplete
        self._configuration = client.configuration
        self.requests = 0
        """Number of requests since it was opened."""
        self.before_writing: Callable[[], None] = lambda: None
        """Called before each write; if it raises OperatorError, nothing is sent. Enforces the lease."""

    @classmethod
    async def open(cls, kubeconfig: str | None = None) -> "Kube":
        """Connect with a kubeconfig file, or with the pod's ServiceAccount. OperatorError if there is neither."""
        configuration, loading = Configuration(), cast(Any, config)
        try:
            if kubeconfig is None:
                loading.load_incluster_config(configuration)
            else:
                await loading.load_kube_config(kubeconfig, client_configuration=configuration)
        except ConfigException as error:
            raise OperatorError(f"no access to a cluster: {error}; give --kubeconfig outside of a pod") from error
        return cls(ApiClient(configuration))

    async def __aenter__(self) -> "Kube":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self._client.close()

    async def get(self, path: str) -> Manifest | None:
        """Return an object, or None if it does not exist. Raises KubeError, UnreachableError."""
        try:
            return await self._ask("GET", path)
        except KubeError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def list(self, path: str, selector: str = "") -> list[Manifest]:
        """Return all objects of a collection, read page by page. Raises KubeError, UnreachableError."""
        found, _ = await self.listed(path, selector)
        return [*found]

    async def listed(
        self, path: str, selector: str = "", *, metadata_only: bool = False
    ) -> tuple[Sequence[Manifest], str]:
        """Return all objects of a collection, and the resourceVersion from which a watch continues."""
        found: list[Manifest] = []
        query = {"limit": str(PAGE_ITEMS)} | ({"labelSelector": selector} if selector else {})
        accept = _PARTIAL.format("List") if metadata_only else _JSON
        while True:
            page = await self._ask("GET", path, query=query, accept=accept)
            found += page.get("items") or ()
            metadata = page.get("metadata", {})
            if not metadata.get("continue"):
                return found, str(metadata.get("resourceVersion", ""))
            query["continue"] = metadata["continue"]

    async def watch(
        self, path: str, version: str, selector: str = "", *, metadata_only: bool = False, for_s: int = 240
    ) -> AsyncGenerator[Manifest, None]:
        """Yield events after a resourceVersion, including bookmarks: `{"type", "object"}`. Ends after `for_s`.

        Raises GoneError if the version is too old, KubeError, and UnreachableError, also if the connection breaks.
        """
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(for_s),
        }
        query |= {"labelSelector": selector} if selector else {}
        accept = _PARTIAL.format("") if metadata_only else _JSON
        # The server ends the watch after `for_s`; a hanging one is aborted somewhat later.
        timeout = aiohttp.ClientTimeout(total=for_s + REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        async with self._asking("GET", path, None, _JSON, query, accept, timeout) as answer:
            if answer.status >= 300:
                raise refusal(answer.status, f"GET {path}", await answer.read())
            async for line in _lines(answer):
                event = _decoded(line)
                if event.get("type") == "ERROR":
                    status = event.get("object", {})
                    raise refusal(int(status.get("code", 500)), f"watch of {path}", json.dumps(status).encode())
                yield event

    async def apply(self, manifest: ReadManifest) -> Manifest:
        """Apply on the server; fields that others changed are overwritten. Raises KubeError, UnreachableError."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._ask("PATCH", manifest_path(manifest), manifest, _APPLY, query)

    async def merge(self, path: str, patch: ReadManifest) -> Manifest:
        """Send a merge patch. ConflictError if it has a `metadata.resourceVersion` that is not the current one."""
        return await self._ask("PATCH", path, patch, _MERGE, {"fieldManager": FIELD_MANAGER})

    async def replace(self, path: str, manifest: ReadManifest) -> Manifest:
        """Replace an object. ConflictError if the resourceVersion is not the current one."""
        return await self._ask("PUT", path, manifest, query={"fieldManager": FIELD_MANAGER})

    async def create(self, path: str, manifest: ReadManifest) -> Manifest:
        """Create an object in a collection. ConflictError if the name exists."""
        return await self._ask("POST", path, manifest)

    async def set_finalizer(self, path: str, meta: Metadata, finalizer: str, present: bool) -> None:
        """Add a finalizer to an object, or remove it. ConflictError if the object changed since `meta` was read."""
        others = [one for one in meta.finalizers if one != finalizer]
        metadata = {
            "finalizers": [*others, finalizer] if present else others,
            "resourceVersion": meta.resource_version,
        }
        await self.merge(path, {"metadata": metadata})

    async def delete(self, path: str, uid: str, *, orphan: bool = False, force: bool = False) -> None:
        """Delete the object with this uid. A missing object, or another one of its name, is no error.

        `force`: delete a pod without waiting for its node.
        """
        body: Manifest = {"preconditions": {"uid": uid}, "propagationPolicy": "Orphan" if orphan else "Background"}
        if force:
            body["gracePeriodSeconds"] = 0
        try:
            await self._ask("DELETE", path, body)
        except KubeError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    async def _ask(
        self,
        method: str,
        path: str,
        body: ReadManifest | None = None,
        content_type: str = _JSON,
        query: Mapping[str, str] | None = None,
        accept: str = _JSON,
    ) -> Manifest:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        if method != "GET":
            self.before_writing()
        async with self._asking(method, path, body, content_type, query, accept, timeout) as answer:
            data = await answer.read()
            if answer.status >= 300:
                raise refusal(answer.status, f"{method} {path}", data)
        return _decoded(data)

    @asynccontextmanager
    async def _asking(
        self,
        method: str,
        path: str,
        body: ReadManifest | None,
        content_type: str,
        query: Mapping[str, str] | None,
        accept: str,
        timeout: aiohttp.ClientTimeout,
        more_headers: Mapping[str, str] = NO_HEADERS,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request; the response is released at the end. UnreachableError, also for a truncated body."""
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": content_type, "Accept": accept, **more_headers}
        for setting in (await self._configuration.auth_settings()).values():
            headers[setting["key"]] = setting["value"]
        self.requests += 1
        try:
            wrapped = await self._client.rest_client.request(method, url, headers, body, _request_timeout=timeout)
            async with wrapped.response as answer:
                yield answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {error or 'no response in time'}") from error


def refusal(status: int, what: str, data: bytes) -> KubeError:
    """Return the error for a response of the API server, or of a proxy in front of it, that is not a success."""
    message = _decoded(data).get("message", data[:200])
    return _KINDS.get(status, KubeError)(status, f"{what}: {message}")


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield lines, each with one event. UnreachableError for a line that is too long."""
    rest = bytearray()
    async for data in answer.content.iter_any():
        *whole, last = data.split(b"\n")
        for line in whole:
            rest += line
            if rest:
                yield bytes(rest)
            rest.clear()
        rest += last
        if len(rest) > WATCH_BYTES_MAX:
            raise UnreachableError(f"watch event exceeds the limit of {WATCH_BYTES_MAX} bytes")


def _decoded(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. The API server returns plain text for unknown paths, which becomes the message."""
    try:
        found = json.loads(data)
    except ValueError:
        return {"message": data[:200].decode(errors="replace").strip()}
    return found if isinstance(found, dict) else {}
