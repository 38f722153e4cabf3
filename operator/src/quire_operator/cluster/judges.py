"""By what the operator judges the certificates of its own pods: the ca.crt of the Secret that they are served from.

Pods are asked by IP, and their certificates are for names: the name that a pod should have is looked for in it.
"""

import base64
import binascii
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from quire_operator.builders.settings import OPERATOR_TOKEN
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import object_path


@dataclass(frozen=True, slots=True)
class Judge:
    """For one pod. `name`: what its certificate must be for."""

    context: ssl.SSLContext
    name: str
    required: bool = False
    """The pod was made to serve nothing but TLS: whoever answers in clear at its address is not it."""


async def trust_of(kube: Kube, namespace: str, secret: str) -> ssl.SSLContext | None:
    """What trusts the ca.crt of a Secret; None while there is none that can be used. KubeError."""
    data = await secret_data(kube, namespace, secret)
    return None if "ca.crt" not in data else _context(data["ca.crt"])


async def operator_token(kube: Kube, namespace: str, secret: str) -> tuple[str | None, frozenset[str]]:
    """The token by which the operator asks, of a Secret with a key and tokens, and its keys with a value. KubeError."""
    found = await kube.get(object_path("v1", "Secret", namespace, secret))
    data = (found or {}).get("data") or {}
    return _texts(data).get(OPERATOR_TOKEN, "").strip() or None, frozenset(key for key, value in data.items() if value)


async def secret_data(kube: Kube, namespace: str, secret: str) -> dict[str, str]:
    """The texts of a Secret; empty when there is none. KubeError."""
    found = await kube.get(object_path("v1", "Secret", namespace, secret))
    return _texts((found or {}).get("data") or {})


def _texts(data: Mapping[str, str]) -> dict[str, str]:
    texts = {}
    for key, value in data.items():
        try:
            texts[key] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, ValueError):
            continue  # a file that is no text is none that is looked for here
    return texts


@lru_cache(maxsize=512)
def _context(authority: str) -> ssl.SSLContext | None:
    """Made once for each authority: it takes a millisecond, and passes are many."""
    try:
        return ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError):
        return None


def trusting_anybody() -> ssl.SSLContext:
    """For pods whose resource asks for no TLS (any more): it protects as little as talking in clear."""
    return _ANYBODY


def _anybody() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def trusting_nobody() -> ssl.SSLContext:
    """For pods that must serve TLS while nobody can say by what authority: what they say is not known then."""
    return _NOBODY


_ANYBODY, _NOBODY = _anybody(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
