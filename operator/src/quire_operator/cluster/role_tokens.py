"""Owns the Secrets with the tokens of roles: signs them with the key of a ManagedLedger, and replaces them.

Only a Secret that the resource owns is written. Neither a key nor a token is logged or becomes part of an error.
"""

import base64
import binascii
from typing import Any

import jwt

from quire_operator.api.client_role import ClientRole
from quire_operator.api.managed_ledger import ManagedLedger
from quire_operator.api.shared import TokenKeyType
from quire_operator.builders import Manifest
from quire_operator.builders.secrets import encoded, owned_secret
from quire_operator.builders.settings import TOKEN_KEY
from quire_operator.cluster.kube import Kube
from quire_operator.cluster.paths import collection, object_path
from quire_operator.errors import RefusedError
from quire_operator.plan.actions import IssueToken
from quire_operator.plan.role_token import ObservedToken

PRIVATE_KEY = "private.key"
SECRET_ALGORITHM = "HS256"
SECRET_BYTES_MIN = 32
_TOKEN, _ROLE, _URL = "token", "role", "serviceUrl"
_SIGNATURE_ONLY: Any = dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud"), False)


class RoleTokens:
    """Reads and writes the Secret of one ClientRole, whose ManagedLedger authenticates clients or not."""

    def __init__(self, kube: Kube, resource: ClientRole, ledger: ManagedLedger) -> None:
        self._kube, self._resource, self._ledger = kube, resource, ledger
        self._secret: Manifest | None = None
        self._key: Any = None
        """The key that signs; the secret, or a private key."""
        self._public: Any = None
        """The key that verifies."""
        self._algorithm = SECRET_ALGORITHM

    async def observe(self) -> ObservedToken:
        """Return the state of the Secret and of the key. Raises KubeError, UnreachableError."""
        fault = await self._read_key()
        path = object_path("v1", "Secret", self._resource.meta.namespace, self._resource.secret_name)
        self._secret = await self._kube.get(path)
        if self._secret is None:
            return ObservedToken(fault)
        if not self._is_ours(self._secret):
            return ObservedToken(fault, exists=True)
        data = {key: _bytes(value) for key, value in (self._secret.get("data") or {}).items()}
        claims = self._claims(data.get(_TOKEN, b""))
        end = claims.get("exp")
        return ObservedToken(
            fault,
            exists=True,
            ours=True,
            role=claims.get("sub"),
            expires_s=float(end) if isinstance(end, int | float) else None,
            service_url=data.get(_URL, b"").decode(errors="replace"),
        )

    async def issue(self, action: IssueToken) -> None:
        """Sign a token and write the Secret. ConflictError if it changed meanwhile. RefusedError if the key is bad."""
        claims = {"sub": action.role, "exp": action.expires_s}
        try:
            token = jwt.encode(claims, self._key, self._algorithm)
        except (jwt.PyJWTError, ValueError, TypeError, NotImplementedError) as error:
            raise RefusedError(
                f"the key cannot sign ({type(error).__name__}): use a private key of {self._algorithm}"
            ) from None
        texts = {_TOKEN: token, _ROLE: action.role, _URL: action.service_url}
        meta = self._resource.meta
        if self._secret is None:
            made = owned_secret(self._resource.KIND, meta, action.secret_name, texts)
            await self._kube.create(collection("v1", "Secret", meta.namespace), made)
        else:
            path = object_path("v1", "Secret", meta.namespace, action.secret_name)
            await self._kube.replace(path, {**self._secret, "data": encoded(texts)})

    def _is_ours(self, secret: Manifest) -> bool:
        owners = secret["metadata"].get("ownerReferences") or ()
        return any(one.get("uid") == self._resource.meta.uid for one in owners)

    async def _read_key(self) -> str | None:
        """Read the key that signs. Returns what is wrong with it."""
        wanted = self._ledger.spec.brokers.authentication
        if wanted is None:
            return None  # nothing to sign for: the plan reports it
        own = self._resource.spec.token.signing_key_secret
        if wanted.key_type is TokenKeyType.PUBLIC and own is None:
            return (
                f"authentication of ManagedLedger {self._ledger.meta.name} has only a public key, which verifies "
                f"tokens: set token.signingKeySecret to a Secret with {PRIVATE_KEY}"
            )
        name, key = (wanted.token_key_secret, TOKEN_KEY) if own is None else (own, PRIVATE_KEY)
        found = await self._kube.get(object_path("v1", "Secret", self._resource.meta.namespace, name))
        data = _bytes(((found or {}).get("data") or {}).get(key, ""))
        if not data:
            return f"Secret {name} has no key {key}: add it, the key that signs the tokens"
        if wanted.key_type is TokenKeyType.SECRET:
            if len(data) < SECRET_BYTES_MIN:
                return f"{key} of Secret {name} has {len(data)} bytes: a secret needs at least {SECRET_BYTES_MIN}"
            self._key = self._public = data
            return None
        return self._read_private(data, wanted.algorithm, f"{key} of Secret {name}")

    def _read_private(self, data: bytes, algorithm: str, what: str) -> str | None:
        try:
            prepared = jwt.get_algorithm_by_name(algorithm).prepare_key(data)
            self._key, self._public, self._algorithm = prepared, prepared.public_key(), algorithm
        except (jwt.PyJWTError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
            return f"{what} is no private key of {algorithm} in PEM format ({type(error).__name__}): replace it"
        return None

    def _claims(self, token: bytes) -> dict[str, Any]:
        """Return the claims of a token that the current key signed; empty for another one. Its end is not checked."""
        if self._public is None:
            return {}
        try:
            return jwt.decode(token, self._public, algorithms=[self._algorithm], options=_SIGNATURE_ONLY)
        except (jwt.PyJWTError, ValueError):
            return {}


def _bytes(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return b""
