"""Verifies passwords against the hashes of an htpasswd file. Pure; one check of bcrypt takes tenths of a second.

    user:$2y$..     bcrypt (`htpasswd -B`), the one to choose
    user:$apr1$..   Apache's MD5 with a salt and 1,000 rounds (`htpasswd -m`, its default)
    user:{SHA}..    SHA-1 without a salt (`htpasswd -s`)

Empty lines and lines that begin with # are ignored. crypt (`htpasswd -d`) and plain text are refused: crypt reads eight
characters of a password only. No error contains a hash.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping

import bcrypt

from quire_bookie.control_characters import is_role
from quire_bookie.errors import ConfigError
from quire_bookie.limits import ROLE_CHARACTERS_MAX
from quire_broker.limits import BCRYPT_COST_MAX, PASSWORD_BYTES_MAX

_BCRYPT = ("$2y$", "$2b$", "$2a$")
_APR1, _SHA = "$apr1$", "{SHA}"
_BCRYPT_BYTES = 72
"""bcrypt reads this much of a password; Apache's tools ignore the rest, the library refuses it."""
_APR1_ROUNDS = 1000
_ITOA64 = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def users_of(data: bytes) -> Mapping[str, str]:
    """Return the hash of each user of a file. ConfigError names the line."""
    try:
        return parse_passwords(data.decode())
    except UnicodeDecodeError:
        raise ConfigError("basicAuthConf is not UTF-8 text") from None


def parse_passwords(text: str) -> Mapping[str, str]:
    """Return the hash of each user. ConfigError names the line."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        user, separator, stored = line.strip().partition(":")
        if not separator or not user or not stored or ":" in stored:
            raise ConfigError(f"basicAuthConf line {number}: expected user:hash, as htpasswd writes it")
        if not is_role(user):
            raise ConfigError(
                f"basicAuthConf line {number}: a user has at most {ROLE_CHARACTERS_MAX} characters and no control "
                "characters"
            )
        if not _is_known(stored):
            raise ConfigError(
                f"basicAuthConf line {number}: the password of {user!r} is not hashed by bcrypt (with a cost of at "
                f"most {BCRYPT_COST_MAX}), apr1 or SHA; set it again with: htpasswd -B FILE USER"
            )
        users[user] = stored
    if not users:
        raise ConfigError("basicAuthConf contains no users; add one with: htpasswd -B FILE USER")
    return users


def _is_known(stored: str) -> bool:
    if stored.startswith(_BCRYPT):
        cost = stored[4:6]
        return len(stored) == 60 and cost.isdecimal() and 4 <= int(cost) <= BCRYPT_COST_MAX
    if stored.startswith(_APR1):
        salt, separator, digest = stored[len(_APR1) :].partition("$")
        return bool(separator) and 0 < len(salt) <= 8 and len(digest) == 22
    return stored.startswith(_SHA) and len(stored) == len(_SHA) + 28


def is_password(password: str, stored: str) -> bool:
    """Return whether a password has this hash, which `parse_passwords` accepted."""
    given = password.encode(errors="surrogatepass")
    if len(given) > PASSWORD_BYTES_MAX:
        return False
    if stored.startswith(_APR1):
        salt = stored[len(_APR1) :].partition("$")[0]
        return hmac.compare_digest(apr1(given, salt.encode()), stored.encode())
    if stored.startswith(_SHA):
        found = base64.b64encode(hashlib.sha1(given, usedforsecurity=False).digest())
        return hmac.compare_digest(_SHA.encode() + found, stored.encode())
    try:
        return bcrypt.checkpw(given[:_BCRYPT_BYTES], stored.encode())
    except ValueError:  # such as a password with a zero byte
        return False


def apr1(password: bytes, salt: bytes) -> bytes:
    """Return `$apr1$salt$digest`. The algorithm is that of APR's apr_md5.c: MD5-crypt with another prefix."""
    inner = hashlib.md5(password + salt + password, usedforsecurity=False).digest()
    start = hashlib.md5(password + _APR1.encode() + salt, usedforsecurity=False)
    start.update((inner * (len(password) // 16 + 1))[: len(password)])
    size = len(password)
    while size:
        start.update(b"\0" if size & 1 else password[:1])
        size >>= 1
    digest = start.digest()
    for number in range(_APR1_ROUNDS):
        digest = hashlib.md5(
            (password if number & 1 else digest)
            + (salt if number % 3 else b"")
            + (password if number % 7 else b"")
            + (digest if number & 1 else password),
            usedforsecurity=False,
        ).digest()
    groups = [(digest[i] << 16 | digest[i + 6] << 8 | digest[15 if i == 4 else i + 12], 4) for i in range(4)]
    groups += [(digest[4] << 16 | digest[10] << 8 | digest[5], 4), (digest[11], 2)]
    text = bytes(_ITOA64[value >> 6 * place & 0x3F] for value, places in groups for place in range(places))
    return _APR1.encode() + salt + b"$" + text
