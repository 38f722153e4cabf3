"""kopf's access to the API server: the same as that of our own client, and of children only the metadata.

kopf would read children whole: ten times the bytes, all in memory while it begins. The API server sends only the
metadata if the request accepts PartialObjectMetadata, and handlers of children need nothing else.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import kopf
from aiohttp import hdrs

from quire_operator.cluster.kube import access_to_cluster

_log = logging.getLogger("quire.operator")
SAME_PAUSE_S = 5.0
_METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


class _Response(aiohttp.ClientResponse):
    """A response that suits kopf: no null for an empty list, as the API server writes it for metadata, which ends kopf.

    Listed objects lose their `managedFields`, half of their memory, which nothing here reads.
    """

    async def json(self, **options: Any) -> Any:
        found = await super().json(**options)
        if isinstance(found, dict) and "items" in found:
            found["items"] = found["items"] or []
            for item in found["items"]:
                item.get("metadata", {}).pop("managedFields", None)
        return found


def login_with(kubeconfig: str | None, of_children: frozenset[str]) -> Callable[..., Awaitable[kopf.AiohttpSession]]:
    """Return the login handler; kopf calls it again after a 401. `of_children`: plurals that are read as metadata."""

    async def metadata_only(
        request: aiohttp.ClientRequest, send: Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]
    ) -> aiohttp.ClientResponse:
        if request.method == hdrs.METH_GET and request.url.name in of_children:
            request.headers[hdrs.ACCEPT] = _METADATA.format("" if "watch" in request.url.query else "List")
        return await send(request)

    former: kopf.ConnectionInfo | None = None

    async def login(**_: object) -> kopf.AiohttpSession:
        nonlocal former
        found = await access_to_cluster(kubeconfig)
        header = (await found.auth_settings()).get("BearerToken", {}).get("value") or ""
        connection = kopf.ConnectionInfo(
            server=found.host,
            ca_path=found.ssl_ca_cert,
            ca_data=found.ca_cert_data,
            insecure=not found.verify_ssl,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
            token=str(header).rpartition(" ")[2].strip() or None,  # after `Bearer` or `bearer`
        )
        if connection == former:
            # kopf takes each session for new credentials, so nothing else would slow its requests down.
            _log.warning("the watches log in again with the same credentials in %.0f s", SAME_PAUSE_S)
            await asyncio.sleep(SAME_PAUSE_S)
        former = connection
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=connection.as_ssl_context()),
            headers=connection.as_http_headers(),
            proxy=found.proxy,
            trust_env=bool((found.client_session_kwargs or {}).get("trust_env")),
            middlewares=[metadata_only],
            response_class=_Response,
        )
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)

    return login
