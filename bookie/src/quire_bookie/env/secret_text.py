"""Resolves a secret of the settings: its text, or the file that a `file:` URL names."""

from quire_bookie.env.secret_file import read_secret
from quire_bookie.errors import ConfigError

_FILE = "file:"


async def secret_text(value: str, key: str) -> bytes:
    """Return the secret, stripped if from a file. ConfigError if the file is empty or unreadable."""
    if not value.startswith(_FILE):
        return value.encode()
    path = value.removeprefix(_FILE)
    path = path.removeprefix("//") if path.startswith("//") else path
    try:
        found = await read_secret(path)
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error
    if not found:
        raise ConfigError(f"{key}: {path} is empty; write the secret into it, or remove the setting")
    return found
