"""Reads and writes objects with the asynchronous `ApiClient` of `kubernetes`, with plain paths and dicts.

The client builds, authenticates and sends each request; this module adds the check of the lease before each write, the
errors, and the meaning of each request. Objects stay dicts: generated classes would drop unknown fields. Watches are
kopf's (`running.handlers`).
"""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, cast
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.config_exception import ConfigException

from quire_operator.api.shared import Metadata
from quire_operator.builders import Manifest, ReadManifest
from quire_operator.builders.naming import FIELD_MANAGER
from quire_operator.cluster.paths import manifest_path
from quire_operator.errors import ConflictError, KubeError, OperatorError, UnreachableError

REQUEST_TIMEOUT_S = 20.0
CONNECT_TIMEOUT_S = 10.0
NO_HEADERS: Mapping[str, str] = {}
PAGE_ITEMS = 500
_JSON = "application/json"
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_BEARER = ["BearerToken"]
_NOT_FOUND, _CONFLICT = 404, 409


class Kube:
    """A connection to an API server. `async with await Kube.open() as kube`."""

    def __init__(self, client: ApiClient) -> None:
        """Wrap a client; use `open` instead."""
        self._client: Any = client  # the library's type annotations are incomplete
        self.requests = 0
        """Number of requests since it was opened."""
        self.before_writing: Callable[[], None] = lambda: None
        """Called before each write; if it raises OperatorError, nothing is sent. Enforces the lease."""

    @classmethod
    async def open(cls, kubeconfig: str | None = None) -> "Kube":
        """Connect with a kubeconfig file, or with the pod's ServiceAccount. OperatorError if there is neither."""
        return cls(ApiClient(await access_to_cluster(kubeconfig)))

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
        found: list[Manifest] = []
        query = {"limit": str(PAGE_ITEMS)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._ask("GET", path, query=query)
            found += page.get("items") or ()
            if not (following := page.get("metadata", {}).get("continue")):
                return found
            query["continue"] = following

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
    ) -> Manifest:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        if method != "GET":
            self.before_writing()
        async with self._asking(method, path, body, content_type, query, _JSON, timeout) as answer:
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
        headers = {"Content-Type": content_type, "Accept": accept, **more_headers}
        pairs = list((query or {}).items())
        self.requests += 1
        try:
            # Without the body, which would be copied recursively: it is plain JSON already.
            request = await self._client.param_serialize(
                method, path, query_params=pairs, header_params=headers, auth_settings=_BEARER
            )
            wrapped = await self._client.call_api(*request[:3], body, _request_timeout=timeout)
            async with wrapped.response as answer:
                yield answer
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {error or 'no response in time'}") from error


async def access_to_cluster(kubeconfig: str | None) -> Configuration:
    """Return address, TLS and credentials of a kubeconfig file, or of the pod's ServiceAccount.

    OperatorError if there is neither.
    """
    configuration, loading = Configuration(), cast(Any, config)
    try:
        if kubeconfig is None:
            loading.load_incluster_config(configuration)
        else:
            await loading.load_kube_config(kubeconfig, client_configuration=configuration)
    except ConfigException as error:
        raise OperatorError(f"no access to a cluster: {error}; give --kubeconfig outside of a pod") from error
    # The client would look for a proxy and for ~/.netrc at each request, in two threads.
    configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
    return configuration


def refusal(status: int, what: str, data: bytes) -> KubeError:
    """Return the error for a response of the API server, or of a proxy in front of it, that is not a success."""
    message = _decoded(data).get("message", data[:200])
    return (ConflictError if status == _CONFLICT else KubeError)(status, f"{what}: {message}")


def _decoded(data: bytes) -> dict[str, Any]:
    """Decode a JSON object. The API server returns plain text for unknown paths, which becomes the message."""
    try:
        found = json.loads(data)
    except ValueError:
        return {"message": data[:200].decode(errors="replace").strip()}
    return found if isinstance(found, dict) else {}
