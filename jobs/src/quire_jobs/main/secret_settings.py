"""Recognizes Spark settings that hold secrets, by their keys, and removes their values from output. Pure.

A key is split into words at dots, dashes, underscores and capital letters. It holds a secret when one of its words
names a secret (`fs.s3a.secret.key`, `ssl.keyPassword`), unless the next word or the last word shows that the value only
refers to a secret: a file, a class, a switch, a duration (`aws.credentials.provider`, `authenticate.secret.file`).
The operator applies the same rule to `spec.spark.conf` in `plan/job_checks.py`.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

HIDDEN: Final = "REDACTED"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_SECRETS: Final = frozenset(
    {
        *(("secret", "key"), ("access", "key"), ("account", "key"), ("private", "key"), ("api", "key")),
        *(("secret",), ("password",), ("passwd",), ("passphrase",), ("token",), ("credential",), ("credentials",)),
        *(("sas", "token"), ("sas",), ("jaas",)),
    }
)
_ABOUT: Final = frozenset(
    {
        *("file", "path", "provider", "providers", "class", "type", "mechanism", "ref", "enabled", "endpoint"),
        *("url", "uri", "ms", "interval", "ratio", "wait", "length"),
    }
)

_NAMES: Final = re.compile(
    r"spark\.kubernetes\.(?:(?:driver|executor)\.(?:secrets|secretKeyRef|label|annotation)|kerberos\.tokenSecret)\."
)
"""Settings of this form hold names and paths, for example of a Secret."""


def holds_secret(key: str) -> bool:
    """Return whether the value of this setting must not be shown."""
    words = [word.lower() for word in _WORD.findall(key)]
    if not words or words[-1] in _ABOUT or _NAMES.match(key):
        return False
    ends = (at + size for size in (2, 1) for at in range(len(words)) if tuple(words[at : at + size]) in _SECRETS)
    end = next(ends, None)  # the longer match counts: in `secret key`, the qualifier follows both words
    return end is not None and not (end < len(words) and words[end] in _ABOUT)


def secrets_of(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values that must not be shown, longest first because one may contain another."""
    return tuple(sorted({value for key, value in settings.items() if value and holds_secret(key)}, key=len)[::-1])


def redacted(value: Any, secrets: Iterable[str]) -> Any:
    """Return the value with HIDDEN in place of each secret, in texts and within JSON values."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, Mapping):
        return {name: redacted(each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        return [redacted(each, secrets) for each in value]
    return value
