"""Invalid tokens: damaged, unsigned, signed with another key or algorithm, with odd headers and claims."""

import base64
import hmac
import json
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.values import deep_texts, json_values, odd_texts

SECRET = b"a secret of tests that is long enough for HS256, HS384 and HS512"
ROLE = "root"
_ALGORITHMS = st.sampled_from(("HS256", "none", "None", "", "HS384", "RS256", "ES256", "x", None, 1, ["HS256"]))
_CLAIMS = st.sampled_from(("sub", "exp", "nbf", "iat", "aud", "iss"))


def encoded(data: bytes) -> bytes:
    """Encode as base64url, as in tokens."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


@st.composite
def tokens(draw: st.DrawFn) -> bytes:
    """Return the bytes of an invalid token."""
    kind = draw(st.integers(0, 5))
    if kind == 0:
        return draw(odd_texts).encode()
    if kind == 1:
        return draw(st.binary(max_size=60))
    header: Any = {"alg": draw(_ALGORITHMS), "typ": draw(st.sampled_from(("JWT", None, 1)))}
    if not draw(st.integers(0, 4)):
        header = draw(json_values(st.sampled_from(("alg", "typ", "kid", "crit", "b64", "jwk", "x5u"))))
    claims = {"sub": ROLE} | draw(st.dictionaries(_CLAIMS, json_values(_CLAIMS), max_size=2))
    body = json.dumps(claims).encode() if kind > 2 else draw(deep_texts).encode()
    signed = encoded(json.dumps(header).encode()) + b"." + encoded(body)
    right = hmac.digest(SECRET, signed, "sha256")
    signature = draw(st.sampled_from((b"", right[:-1], right + b"x", hmac.digest(b"other" * 9, signed, "sha256"))))
    found = signed + b"." + encoded(signature)
    return found if draw(st.integers(0, 5)) else found + draw(st.sampled_from((b".", b".x", b"=", b" ", b"\x00")))
