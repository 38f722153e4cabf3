"""Which settings of Spark hold secrets, by their keys, and their values taken out of what a run prints. Pure.

A key is cut into words at dots, dashes, underscores and humps. It holds a secret when a word for one is in it
(`fs.s3a.secret.key`, `ssl.keyPassword`), unless the word behind it, or the last of all, says that the value is only
about one: a file, a class, a switch, a duration (`aws.credentials.provider`, `authenticate.secret.file`).
The operator has the same rule for `spec.spark.conf` in `plan/job_checks.py`.
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
"""Their values are names and paths: of a Secret, say."""


def holds_secret(key: str) -> bool:
    """Whether the value of this setting is nobody's business."""
    words = [word.lower() for word in _WORD.findall(key)]
    if not words or words[-1] in _ABOUT or _NAMES.match(key):
        return False
    ends = (at + size for size in (2, 1) for at in range(len(words)) if tuple(words[at : at + size]) in _SECRETS)
    end = next(ends, None)  # of `secret key` the longer one counts: what it is about stands behind both
    return end is not None and not (end < len(words) and words[end] in _ABOUT)


def secrets_of(settings: Mapping[str, str]) -> tuple[str, ...]:
    """The values that may not be shown, the longest first: one may be a part of another."""
    return tuple(sorted({value for key, value in settings.items() if value and holds_secret(key)}, key=len)[::-1])


def without(value: Any, secrets: Iterable[str]) -> Any:
    """Texts, and what JSON holds of them, with HIDDEN in the place of each secret."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, Mapping):
        return {name: without(each, secrets) for name, each in value.items()}
    if isinstance(value, list):
        return [without(each, secrets) for each in value]
    return value
