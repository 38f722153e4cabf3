"""The API server as plain paths and dicts. Owns the connection; the library `kubernetes` gives it credentials and TLS.

Objects stay dicts: generated classes would drop the fields that they do not know.
"""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config.config_exception import ConfigException

from quire_operator.builders import Manifest, ReadManifest
from quire_operator.builders.naming import FIELD_MANAGER
from quire_operator.cluster.paths import manifest_path
from quire_operator.errors import ConflictError, KubeError, OperatorError, UnreachableError

REQUEST_TIMEOUT_S = 20.0
PAGE_ITEMS = 500
_APPLY, _MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
_NOT_FOUND, _CONFLICT = 404, 409


class Kube:
    """An API server. `async with await Kube.open() as kube`."""

    def __init__(self, client: ApiClient) -> None:
        """Use `open`."""
        self._client: Any = client  # its own annotations end here
        self._configuration = client.configuration

    @classmethod
    async def open(cls, kubeconfig: str | None = None) -> "Kube":
        """With a kubeconfig file, else with the account of the pod. OperatorError when there is neither."""
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
        """An object; None when there is none. KubeError, UnreachableError."""
        try:
            return await self._ask("GET", path)
        except KubeError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    async def list(self, path: str, selector: str = "") -> list[Manifest]:
        """All objects of a collection, page by page. KubeError, UnreachableError."""
        found: list[Manifest] = []
        query = {"limit": str(PAGE_ITEMS)} | ({"labelSelector": selector} if selector else {})
        while True:
            page = await self._ask("GET", path, query=query)
            found += page.get("items", [])
            token = page.get("metadata", {}).get("continue")
            if not token:
                return found
            query["continue"] = token

    async def apply(self, manifest: ReadManifest) -> Manifest:
        """Server-side apply; fields that others changed are taken back. KubeError, UnreachableError."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._ask("PATCH", manifest_path(manifest), manifest, _APPLY, query)

    async def merge(self, path: str, patch: ReadManifest) -> Manifest:
        """A merge patch; with `metadata.resourceVersion` in it, ConflictError when that is not the present one."""
        return await self._ask("PATCH", path, patch, _MERGE, {"fieldManager": FIELD_MANAGER})

    async def replace(self, path: str, manifest: ReadManifest) -> Manifest:
        """PUT; ConflictError when the resourceVersion in it is not the present one."""
        return await self._ask("PUT", path, manifest, query={"fieldManager": FIELD_MANAGER})

    async def create(self, path: str, manifest: ReadManifest) -> Manifest:
        """POST to a collection. ConflictError when the name is taken."""
        return await self._ask("POST", path, manifest)

    async def delete(self, path: str, uid: str, *, orphan: bool = False) -> None:
        """Delete the object with this uid; one that is gone, or another under its name, is no error."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Orphan" if orphan else "Background"}
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
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Manifest:
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        for setting in (await self._configuration.auth_settings()).values():
            headers[setting["key"]] = setting["value"]
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        try:
            answer = await self._client.rest_client.request(method, url, headers, body, _request_timeout=timeout)
            data = await answer.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise UnreachableError(f"{method} {path}: {error or 'no answer in time'}") from error
        found = _decoded(data)
        if answer.status < 300:
            return found
        kind = ConflictError if answer.status == _CONFLICT else KubeError
        raise kind(answer.status, f"{method} {path}: {found.get('message', data[:200])}")


def _decoded(data: bytes) -> dict[str, Any]:
    """A path that nobody serves is answered with a line of text."""
    try:
        found = json.loads(data)
    except ValueError:
        return {"message": data[:200].decode(errors="replace").strip()}
    return found if isinstance(found, dict) else {}
