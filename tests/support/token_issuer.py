"""An OpenID Connect issuer on this machine: real keys, discovery, a key set and a token endpoint, over HTTP."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

AUDIENCE = "urn:quire:tests"
CLIENT_SECRET = "a-secret-of-a-client"
DISCOVERY = "/.well-known/openid-configuration"


def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    """A new private key."""
    return rsa.generate_private_key(65537, bits)


def ec_key() -> ec.EllipticCurvePrivateKey:
    """A new private key for ES256."""
    return ec.generate_private_key(ec.SECP256R1())


def jwk_of(key: Any, key_id: str, **more: Any) -> dict[str, Any]:
    """The public key as an issuer publishes it."""
    kind = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    found: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    found.pop("key_ops", None)
    return found | {"kid": key_id, "use": "sig"} | more


class TokenIssuer:
    """Listens on loopback. `asked` counts the requests by path; `answers` replaces an answer: a status and a body."""

    def __init__(self) -> None:
        self.key_id = "k1"
        self.key: Any = rsa_key()
        self.keys = [jwk_of(self.key, self.key_id)]
        self.asked: dict[str, int] = {}
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.lasts_s = 3600.0
        self.may_answer = threading.Event()
        self.may_answer.set()
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])))

            def _answer(self, body: bytes) -> None:
                issuer.may_answer.wait(60)
                status, found = issuer._answered(self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(found)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, format: str, *args: Any) -> None:
                """Keep the output of tests free of it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    def rotate(self) -> None:
        """Sign with a new key, and publish only that."""
        self.key_id, self.key = f"{self.key_id}n", rsa_key()
        self.keys = [jwk_of(self.key, self.key_id)]

    def token(self, role: str = "app", *, key: Any = None, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token; a claim of None is left out."""
        now_s = time.time()
        found = {"iss": self.url, "sub": role, "aud": AUDIENCE, "iat": now_s, "exp": now_s + self.lasts_s} | claims
        signer = key or self.key
        algorithm = "RS256" if isinstance(signer, rsa.RSAPrivateKey) else "ES256"
        return jwt.encode(
            {name: value for name, value in found.items() if value is not None},
            signer,
            algorithm,
            {"kid": self.key_id} | (headers or {}),
        )

    def _answered(self, path: str, body: bytes) -> tuple[int, bytes]:
        self.asked[path] = self.asked.get(path, 0) + 1
        if path in self.answers:
            return self.answers[path]
        if path == DISCOVERY:
            about = {"issuer": self.url, "jwks_uri": f"{self.url}/keys", "token_endpoint": f"{self.url}/token"}
            return 200, json.dumps(about).encode()
        if path == "/keys":
            return 200, json.dumps({"keys": self.keys}).encode()
        if path == "/token":
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            if form.get("grant_type") != "client_credentials" or form.get("client_secret") != CLIENT_SECRET:
                return 401, b'{"error": "invalid_client"}'
            granted = self.token(form["client_id"], aud=form.get("audience"))
            # Clients ask for another one a little before it expires.
            return 200, json.dumps({"access_token": granted, "expires_in": int(self.lasts_s) - 2}).encode()
        return 404, b"{}"
