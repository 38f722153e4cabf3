"""Opens the keys that settings name, and follows their files. Its imports are slow: import it when needed."""

import base64
import binascii
from functools import partial
from typing import Protocol

from quire_bookie.env.clock import WallClock
from quire_bookie.errors import ConfigError
from quire_bookie.settings.tokens import TokenSettings
from quire_bookie.tokens.checks import (
    OpaqueTokens,
    SignedTokens,
    TokenCheck,
    parse_tokens,
    public_algorithm,
    public_key_of,
    secret_algorithms,
    secret_of,
)
from quire_bookie.tokens.files import TokenFile
from quire_bookie.tokens.key_urls import file_path, inline_data


class KeyFiles(Protocol):
    """Reads whole files; a Disk is one."""

    async def exists(self, path: str, /) -> bool:
        """Return whether the file exists."""
        ...

    async def read_file(self, path: str, /) -> bytes:
        """Return the content. OSError."""
        ...


async def open_tokens(settings: TokenSettings, disk: KeyFiles, clock: WallClock) -> TokenFile:
    """Return the verifier for the key or list of the settings, after the first read. ConfigError."""

    def listed(data: bytes) -> TokenCheck:
        try:
            return OpaqueTokens(parse_tokens(data.decode()))
        except UnicodeDecodeError as error:
            raise ConfigError(f"tokenStaticFile {settings.tokens_path} is not UTF-8 text") from error

    claims = settings.claim, settings.audience_claim, settings.audience

    def with_secret(data: bytes) -> TokenCheck:
        return SignedTokens(secret_of(data), secret_algorithms(), clock, *claims)

    def with_public_key(data: bytes) -> TokenCheck:
        key = public_key_of(data, settings.algorithm)
        return SignedTokens(key, public_algorithm(settings.algorithm), clock, *claims)

    if settings.tokens_path:
        read = partial(_read, settings.tokens_path, "tokenStaticFile", disk)
        file = TokenFile("tokenStaticFile", read, listed)
    elif settings.secret_key:
        read = partial(read_key, settings.secret_key, "tokenSecretKey", disk)
        file = TokenFile("tokenSecretKey", read, with_secret)
    else:
        read = partial(read_key, settings.public_key, "tokenPublicKey", disk)
        file = TokenFile("tokenPublicKey", read, with_public_key)
    await file.open()
    return file


async def read_key(value: str, setting: str, disk: KeyFiles) -> bytes:
    """Read a key, or other content that a setting names, in one of Pulsar's forms. ConfigError.

    The forms: a `data:` URL, a `file:` URL, a path, or the content itself in base64.
    """
    data = inline_data(value)
    if data is not None:
        return data
    path = file_path(value)
    if value.startswith("file:") or await disk.exists(path):
        return await _read(path, setting, disk)
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        # Do not quote the value: it may be a secret that was cut off.
        raise ConfigError(f"{setting} is neither the path of an existing file nor its content in base64") from None


async def _read(path: str, setting: str, disk: KeyFiles) -> bytes:
    try:
        return await disk.read_file(path)
    except OSError as error:
        raise ConfigError(f"{setting}: the file {path} cannot be read: {error.strerror or error}") from error
