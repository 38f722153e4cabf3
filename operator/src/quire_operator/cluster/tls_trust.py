"""How the operator verifies the certificates of its pods: with the ca.crt of the Secret that has the certificates.

Pods are contacted by IP, but their certificates have host names: the expected name of the pod is verified.
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
class TlsTrust:
    """How one pod is verified. `name`: expected host name of its certificate."""

    context: ssl.SSLContext
    name: str
    required: bool = False
    """The pod serves only TLS: a plaintext response from its address is not from the pod."""


async def trust_of(kube: Kube, namespace: str, secret: str) -> ssl.SSLContext | None:
    """Return a context that trusts the ca.crt of a Secret; None while there is no valid one. Raises KubeError."""
    data = await secret_data(kube, namespace, secret)
    return None if "ca.crt" not in data else _context(data["ca.crt"])


async def operator_token(kube: Kube, namespace: str, secret: str) -> tuple[str | None, frozenset[str]]:
    """Return the operator's token in a Secret, and all keys of the Secret that have a value. Raises KubeError."""
    found = await kube.get(object_path("v1", "Secret", namespace, secret))
    data = (found or {}).get("data") or {}
    return _texts(data).get(OPERATOR_TOKEN, "").strip() or None, frozenset(key for key, value in data.items() if value)


async def secret_data(kube: Kube, namespace: str, secret: str) -> dict[str, str]:
    """Return the text values of a Secret; empty if it does not exist. Raises KubeError."""
    found = await kube.get(object_path("v1", "Secret", namespace, secret))
    return _texts((found or {}).get("data") or {})


def _texts(data: Mapping[str, str]) -> dict[str, str]:
    texts = {}
    for key, value in data.items():
        try:
            texts[key] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, ValueError):
            continue  # none of the values that are needed here is binary
    return texts


@lru_cache(maxsize=512)
def _context(authority: str) -> ssl.SSLContext | None:
    """Create the context once for each authority: this takes a millisecond, and reconciliations are frequent."""
    try:
        return ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError):
        return None


def trusting_any() -> ssl.SSLContext:
    """Return a context that accepts every certificate, for pods without TLS in their spec: no safer than plaintext."""
    return _ANY


def _any() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def trusting_none() -> ssl.SSLContext:
    """Return a context that accepts no certificate, for pods that must serve TLS while their authority is unknown."""
    return _NONE


_ANY, _NONE = _any(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
