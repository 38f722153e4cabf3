"""Where a key is, as Pulsar writes it: a `data:` URL with the key itself, a `file:` URL, or a path. Reads no file."""

import base64
import binascii

from quire_bookie.errors import ConfigError


def inline_data(url: str) -> bytes | None:
    """The bytes of a `data:` URL; None for anything else. ConfigError."""
    if not url.startswith("data:"):
        return None
    head, comma, body = url.partition(",")
    try:
        if not comma:
            raise ValueError("no comma")
        return base64.b64decode(body, validate=True) if head.endswith(";base64") else body.encode()
    except (ValueError, binascii.Error):
        raise ConfigError("a key given as data: URL must look like data:;base64,<base64 of the key>") from None


def file_path(url: str) -> str:
    """The path that a `file:` URL or a plain path names."""
    return url.removeprefix("file:").replace("//", "", 1) if url.startswith("file://") else url.removeprefix("file:")
