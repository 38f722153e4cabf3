"""Reads the id of a cluster from an etcd member through its JSON gateway, with the Secrets that its clients use.

The operator has no gRPC client, and never writes to the metadata store.
"""

import asyncio
import base64
import binascii
import ipaddress
import socket
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from quire_operator.api.shared import MetadataStore
from quire_operator.cluster.bounded_body import IDENTITY, read_json
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.tls_trust import secret_data
from quire_operator.errors import OperatorError, UnreachableError
from quire_operator.plan.metadata_target import StoreAnswer

CLUSTER_ID_KEY = "/ledgers/INSTANCEID"
ASK_TIMEOUT_S = 5.0
_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How the members of a store are contacted."""

    context: ssl.SSLContext | None
    """None for plaintext."""
    user: tuple[str, str] | None
    """Name and password."""


async def ask_store(kube: Kube, namespace: str, store: MetadataStore) -> dict[str, StoreAnswer]:
    """Return the response of each member. `namespace`: of the resource, in which short names of Services resolve."""
    try:
        access = await _access(kube, namespace, store)
    except OperatorError as error:
        return dict.fromkeys(store.endpoints, StoreAnswer(error=str(error)[:_ERROR_CHARS]))
    async with aiohttp.ClientSession() as session:
        found = await asyncio.gather(*(_answer(session, one, namespace, access) for one in store.endpoints))
    return dict(zip(store.endpoints, found, strict=True))


async def _answer(session: aiohttp.ClientSession, endpoint: str, namespace: str, access: StoreAccess) -> StoreAnswer:
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            return StoreAnswer(await _cluster_id(session, endpoint, namespace, access))
    except TimeoutError:
        return StoreAnswer(error=f"no response within {ASK_TIMEOUT_S:.0f} s")
    except (aiohttp.ClientError, OSError, ValueError, UnreachableError) as error:
        return StoreAnswer(error=(str(error) or type(error).__name__)[:_ERROR_CHARS])


async def _cluster_id(session: aiohttp.ClientSession, endpoint: str, namespace: str, access: StoreAccess) -> str:
    """Return the id; empty if the store has none. Raises UnreachableError, ClientError, OSError, ValueError."""
    host, _, port = endpoint.rpartition(":")
    address = await _address(host, int(port), namespace)
    scheme = "http" if access.context is None else "https"
    at = f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}"

    async def post(path: str, body: dict[str, str], token: str | None = None) -> dict[str, Any]:
        headers = IDENTITY | ({"Authorization": token} if token is not None else {})
        tls, name = (True, None) if access.context is None else (access.context, host)
        async with session.post(
            f"{at}{path}", json=body, headers=headers, ssl=tls, server_hostname=name, allow_redirects=False
        ) as answer:
            is_json = answer.content_type == "application/json"
            found = await read_json(answer) if is_json else None
        if answer.status != 200 or not isinstance(found, dict):
            # Only etcd's own message: the response of another server may not be meant for the status of a resource.
            why = found.get("error", "no message") if isinstance(found, dict) else "not a response of etcd"
            raise UnreachableError(f"{path} was refused ({answer.status}): {why}; check host and port")
        return found

    token = None
    if access.user is not None:
        user, password = access.user
        token = str((await post("/v3/auth/authenticate", {"name": user, "password": password})).get("token", ""))
    found = await post("/v3/kv/range", {"key": base64.b64encode(CLUSTER_ID_KEY.encode()).decode()}, token)
    if "header" not in found:
        raise UnreachableError("the response is not one of etcd: check host and port")
    try:
        return "".join(base64.b64decode(one["value"], validate=True).decode() for one in found.get("kvs") or ())
    except (AttributeError, KeyError, TypeError, binascii.Error) as error:
        raise UnreachableError(f"unexpected response from etcd ({error!r})") from error


async def _address(host: str, port: int, namespace: str) -> str:
    """Return the address of a member, by the names that a pod of the resource's namespace would try. OSError."""
    loop, unknown = asyncio.get_running_loop(), f"the name {host} does not resolve in namespace {namespace}"
    for name in names_to_try(host, namespace):
        try:
            found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            unknown = f"the name {host} does not resolve in namespace {namespace}: {error.strerror}"
            continue
        return str(found[0][4][0])
    raise UnreachableError(unknown)


def names_to_try(host: str, namespace: str) -> list[str]:
    """Return the names under which a pod in the namespace finds the host; the operator's own may be another one."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass_on = host == "localhost" or host.endswith((".svc", ".cluster.local"))
    else:
        pass_on = True
    if pass_on:
        return [host]
    within = f"{host}.{namespace}.svc"
    return [within] if "." not in host else [within, f"{host}.svc", host]


async def _access(kube: Kube, namespace: str, store: MetadataStore) -> StoreAccess:
    """Return the access by the Secrets of the store. Raises KubeError, UnreachableError."""
    context, user = None, None
    if store.tls is not None:
        data = await secret_data(kube, namespace, store.tls.secret_name)
        context = _context(store.tls.secret_name, data, store.tls.client_certificate)
    if store.auth is not None:
        data = await secret_data(kube, namespace, store.auth.secret_name)
        if not {"username", "password"} <= data.keys():
            raise UnreachableError(f"Secret {store.auth.secret_name} lacks username or password: add them")
        user = data["username"].strip(), data["password"].strip()
    return StoreAccess(context, user)


def _context(secret: str, data: dict[str, str], client_certificate: bool) -> ssl.SSLContext:
    """Return a context that trusts ca.crt and presents tls.crt. Raises UnreachableError."""
    needed = {"ca.crt", "tls.crt", "tls.key"} if client_certificate else {"ca.crt"}
    if lacking := sorted(needed - data.keys()):
        raise UnreachableError(f"Secret {secret} lacks {', '.join(lacking)}: add them")
    try:
        context = ssl.create_default_context(cadata=data["ca.crt"])
        if client_certificate:
            # `ssl` reads certificates only from files; the folder is in memory in the operator's pod.
            with tempfile.TemporaryDirectory() as folder:
                files = Path(folder, "tls.crt"), Path(folder, "tls.key")
                for file in files:
                    file.touch(0o600)
                    file.write_text(data[file.name])
                context.load_cert_chain(*files)
    except (ssl.SSLError, ValueError) as error:
        raise UnreachableError(f"Secret {secret} has no valid certificates: {error}") from error
    return context
