"""Parses the forms in which Pulsar gives a key: a `data:` URL with the key, a `file:` URL, or a path. Reads no file."""

import base64
import binascii

from quire_bookie.errors import ConfigError


def inline_data(url: str) -> bytes | None:
    """Return the bytes of a `data:` URL; None for anything else. ConfigError."""
    if not url.startswith("data:"):
        return None
    head, comma, body = url.partition(",")
    try:
        if not comma:
            raise ValueError("no comma")
        return base64.b64decode(body, validate=True) if head.endswith(";base64") else body.encode()
    except (ValueError, binascii.Error):
        raise ConfigError("a key in a data: URL must have the form data:;base64,<base64 of the key>") from None


def file_path(url: str) -> str:
    """Return the path of a `file:` URL or a plain path."""
    return url.removeprefix("file:").replace("//", "", 1) if url.startswith("file://") else url.removeprefix("file:")
