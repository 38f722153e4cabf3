"""Maintains the Secrets with certificates: reads them, issues what `deciding` finds missing, and writes them.

A Secret that the operator did not create is never changed (`ForeignSecretError`). Every step may be interrupted and
resumed: an authority is stored before it signs anything.
"""

import asyncio
import base64
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire_operator.api import GROUP
from quire_operator.builders import Manifest
from quire_operator.builders.naming import OUR_LABELS
from quire_operator.certificates import issuing
from quire_operator.certificates.deciding import (
    AUTHORITY_LIFE_S,
    LIFE_S,
    Step,
    authority_step,
    renewal,
    trusted,
)
from quire_operator.certificates.issuing import CertificateError, Facts, Pair
from quire_operator.certificates.subjects import Subject
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection, object_path
from quire_operator.errors import OperatorError

_log = logging.getLogger("quire.operator")
AUTHORITY = "quire-ca"
"""Name of the authority of a Kubernetes namespace."""
KEPT_S = 60.0
"""Interval of checks of a complete Secret; a manual change can last this long."""
MADE_HERE = f"{GROUP}/certificate"
_CERTIFICATE, _KEY, _TRUSTED = "tls.crt", "tls.key", "ca.crt"
_NEXT_CERTIFICATE, _NEXT_KEY = "next.crt", "next.key"
_LABELS = {**OUR_LABELS, MADE_HERE: "true"}


class ForeignSecretError(OperatorError):
    """A Secret of the required name exists, but the operator did not create it."""


@dataclass(frozen=True, slots=True)
class Authority:
    """A signing authority, and the certificates that its clients should trust."""

    pair: Pair
    facts: Facts
    trusted: bytes
    """Content of `ca.crt`."""


class CertificateSecrets:
    """Owns the Secrets of one operator process. Concurrent reconciliations may use it: an authority is created once."""

    def __init__(self, kube: Kube, *, kept_s: float = KEPT_S) -> None:
        self._kube = kube
        self._kept_s = kept_s
        self._authorities: dict[tuple[str, str], tuple[Authority, float]] = {}
        self._whole: dict[tuple[str, str], tuple[Subject, bytes, float]] = {}
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}

    async def ensure(
        self,
        namespace: str,
        name: str,
        subject: Subject,
        now_s: float,
        *,
        owner: Manifest | None = None,
        authority: tuple[str, str] | None = None,
    ) -> None:
        """Ensure that the Secret has a certificate with these names that stays valid long enough.

        `owner`: owner reference of the resource with which it is deleted. `authority`: namespace and name of an
        authority other than the namespace's own. Raises ForeignSecretError, KubeError (ConflictError if another client
        wrote in between).
        """
        at = authority or (namespace, AUTHORITY)
        async with self._locks.setdefault(at, asyncio.Lock()):
            signer = await self._authority(*at, now_s)
        known = self._whole.get((namespace, name))
        if known is not None and known[:2] == (subject, signer.trusted) and 0 <= now_s - known[2] < self._kept_s:
            return
        there = await self._found(namespace, name)
        data = _data(there)
        why = renewal(_read(data, _CERTIFICATE, _KEY), subject, signer.facts, now_s)
        if why is not None:
            _log.info("issuing certificate %s/%s: %s", namespace, name, why.reason)
            pair = issuing.issue(subject, signer.pair, now_s, LIFE_S)
            data = {_CERTIFICATE: pair.certificate, _KEY: pair.key}
        if why is not None or data.get(_TRUSTED) != signer.trusted or not _is_owned(there, owner):
            await self._write(there, namespace, name, {**data, _TRUSTED: signer.trusted}, "kubernetes.io/tls", owner)
        self._whole[namespace, name] = (subject, signer.trusted, now_s)

    def forget(self, namespace: str, name: str) -> None:
        """Forget a Secret whose resource is being deleted; Kubernetes deletes the Secret with it."""
        self._whole.pop((namespace, name), None)

    async def _authority(self, namespace: str, name: str, now_s: float) -> Authority:
        known = self._authorities.get((namespace, name))
        if known is not None and 0 <= now_s - known[1] < self._kept_s:
            return known[0]
        there = await self._found(namespace, name)
        data = _data(there)
        signing, following = _read(data, _CERTIFICATE, _KEY), _read(data, _NEXT_CERTIFICATE, _NEXT_KEY)
        step = authority_step(signing, following, now_s)
        changed = dict(data)
        if step in (Step.MAKE, Step.PREPARE):
            which = "the first" if step is Step.MAKE else "the next"
            _log.info("authority %s/%s: creating %s certificate", namespace, name, which)
            made = issuing.new_authority(f"quire {namespace}", now_s, AUTHORITY_LIFE_S)
            places = (_CERTIFICATE, _KEY) if step is Step.MAKE else (_NEXT_CERTIFICATE, _NEXT_KEY)
            changed |= dict(zip(places, (made.certificate, made.key), strict=True))
        elif step is Step.PROMOTE:
            _log.info("authority %s/%s: the next certificate signs from now on", namespace, name)
            changed[_CERTIFICATE], changed[_KEY] = changed.pop(_NEXT_CERTIFICATE), changed.pop(_NEXT_KEY)
        signing, following = _read(changed, _CERTIFICATE, _KEY), _read(changed, _NEXT_CERTIFICATE, _NEXT_KEY)
        assert signing is not None
        former = [issuing.facts(each) for each in _bundle(data.get(_TRUSTED, b""))]
        keep = trusted(former, signing, following, now_s)
        changed[_TRUSTED] = b"".join(issuing.pem_of(each.signer) for each in keep)
        if changed != data:
            await self._write(there, namespace, name, changed, "Opaque", None)
        found = Authority(Pair(changed[_CERTIFICATE], changed[_KEY]), signing, changed[_TRUSTED])
        self._authorities[namespace, name] = (found, now_s)
        return found

    async def _found(self, namespace: str, name: str) -> Manifest | None:
        """Return the Secret if the operator created it; None if it does not exist."""
        there = await self._kube.get(object_path("v1", "Secret", namespace, name))
        if there is not None and MADE_HERE not in there["metadata"].get("labels", {}):
            raise ForeignSecretError(
                f"the Secret {name} was not created by this operator and is not changed: rename it, or name it in "
                "tls.secretName to use it"
            )
        return there

    async def _write(
        self,
        there: Manifest | None,
        namespace: str,
        name: str,
        data: Mapping[str, bytes],
        kind: str,
        owner: Manifest | None,
    ) -> None:
        """Create the Secret, or replace it under the resourceVersion that was read, so that a race is a conflict."""
        encoded = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
        if there is not None:
            former = dict(there["metadata"], labels={**there["metadata"].get("labels", {}), **_LABELS})
            if not _is_owned(there, owner):
                former["ownerReferences"] = [owner]
            changed = {**there, "metadata": former, "data": encoded}
            await self._kube.replace(object_path("v1", "Secret", namespace, name), changed)
            return
        metadata: dict[str, Any] = {"name": name, "namespace": namespace, "labels": dict(_LABELS)}
        if owner is not None:
            metadata["ownerReferences"] = [owner]
        made = {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": metadata, "data": encoded}
        await self._kube.create(collection("v1", "Secret", namespace), made)


def _is_owned(there: Manifest | None, owner: Manifest | None) -> bool:
    """Return whether the owner is the current one: a recreated resource must not lose its Secret with the former."""
    if there is None or owner is None:
        return True
    return any(each.get("uid") == owner["uid"] for each in there["metadata"].get("ownerReferences", ()))


def _data(there: Manifest | None) -> dict[str, bytes]:
    """Return the decoded values of a Secret; the API server accepts only valid base64."""
    found: Mapping[str, str] = {} if there is None else there.get("data") or {}
    return {key: base64.b64decode(value) for key, value in found.items()}


def _read(data: Mapping[str, bytes], certificate: str, key: str) -> Facts | None:
    """Parse a certificate of a Secret; None if it is missing or invalid."""
    if certificate not in data or key not in data:
        return None
    try:
        return issuing.read(Pair(data[certificate], data[key]))
    except CertificateError as error:
        _log.warning("ignoring invalid %s: %s", certificate, error)
        return None


def _bundle(pem: bytes) -> list[Any]:
    try:
        return list(issuing.bundle(pem)) if pem else []
    except CertificateError:
        return []
