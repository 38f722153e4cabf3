"""Redacts secrets from a support bundle. Pure.

Secrets are never read. In objects, settings and log lines, values are replaced if their name indicates a secret; texts
that look like a token or a key are replaced anywhere.
"""

import json
import re
from typing import Any, Final

HIDDEN: Final = "REDACTED"
_NAMES = r"[\w.-]*(?:password|passwd|secret|token|credential|apikey|api_key|privatekey|private_key|authparam\w*)[\w.-]*"
_SECRET_NAME = re.compile(_NAMES, re.IGNORECASE)
_REFERENCES = re.compile(r"secretName|secretKeyRef|secretRef|tokenExpirationSeconds|automountServiceAccountToken", re.I)
_VALUE = r"""("(?:\\.|[^"\\])*"|'[^']*'|\\+"(?:[^"\\])*\\+"|[^\s,;}\]]+)"""
"""A quoted value, one quoted within a quoted text (a line of JSON in a log), or a word."""
_ASSIGNED = re.compile(rf"""((?:\\*["'])?{_NAMES}(?:\\*["'])?\s*[:=]\s*){_VALUE}""", re.IGNORECASE)
_OPTION = re.compile(rf"(--{_NAMES}\s+)(?!-)\S+", re.IGNORECASE)
_BEARER = re.compile(
    r"""(bearer\s+|authorization\\*["']?\s*[:=]\s*\\*["']?basic\s+)[A-Za-z0-9._~+/=-]+""", re.IGNORECASE
)
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_IN_URL = re.compile(r"(\w+://)[^/\s:@]*:[^/\s@]+@")
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def clean_text(text: str) -> str:
    """Redact a log or a settings file."""
    text = _PEM.sub(HIDDEN, text)
    text = _ASSIGNED.sub(lambda found: found[1] + HIDDEN, text)
    text = _OPTION.sub(lambda found: found[1] + HIDDEN, text)
    text = _BEARER.sub(lambda found: found[1] + HIDDEN, text)
    text = _IN_URL.sub(lambda found: found[1] + HIDDEN + "@", text)
    return _JWT.sub(HIDDEN, text)


def clean(value: Any, name: str = "") -> Any:
    """Redact an object of the API. References to Secrets stay."""
    if isinstance(value, dict):
        if "name" in value and "value" in value and _SECRET_NAME.fullmatch(str(value["name"])):
            return {**value, "value": HIDDEN}
        return {key: clean(each, key) for key, each in value.items() if key not in ("managedFields", _LAST_APPLIED)}
    if isinstance(value, list):
        before = [None, *value]
        return [
            HIDDEN if _is_option(option) else clean(each, name) for option, each in zip(before, value, strict=False)
        ]
    if isinstance(value, str):
        if _SECRET_NAME.fullmatch(name) and not _REFERENCES.fullmatch(name):
            return HIDDEN
        return clean_text(value)
    return value


def _is_option(word: Any) -> bool:
    """Return whether an argument is an option whose value, the next argument, is secret."""
    return isinstance(word, str) and word.startswith("--") and _SECRET_NAME.fullmatch(word[2:]) is not None


def clean_json(value: Any) -> str:
    """Return a redacted object as JSON text."""
    return json.dumps(clean(value), indent=2, ensure_ascii=False) + "\n"
