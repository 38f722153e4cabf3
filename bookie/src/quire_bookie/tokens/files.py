"""Follows the file with the token key or list: a secret, a public key, or a list of tokens.

Never replaces valid keys by an invalid file: if it cannot be read or used, the previous keys stay in use, with a log
line and a count. Never logs content of the file.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_bookie.errors import ConfigError

if TYPE_CHECKING:
    from quire_bookie.tokens.checks import TokenCheck, TokenGrant

_log = logging.getLogger("quire.server.security")


@dataclass(slots=True)
class TokenFileStats:
    """Counters since the start, for a collector."""

    loads: int = 0
    load_failures: int = 0


class TokenFile:
    """A token check that follows its file. `read` returns the content (ConfigError), `make` the check (ConfigError)."""

    def __init__(self, name: str, read: Callable[[], Awaitable[bytes]], make: "Callable[[bytes], TokenCheck]") -> None:
        self._name = name
        self._read = read
        self._make = make
        self._check: TokenCheck | None = None
        self._digest = b""
        self._failure = ""
        self.stats = TokenFileStats()

    async def open(self) -> None:
        """Read for the first time. ConfigError."""
        self._take(await self._read())

    def role_of(self, token: str) -> str:
        """See TokenCheck."""
        assert self._check is not None, "opened before it is used"
        return self._check.role_of(token)

    def grant_of(self, token: str) -> "TokenGrant":
        """See TokenCheck."""
        assert self._check is not None, "opened before it is used"
        return self._check.grant_of(token)

    async def refresh(self) -> bool:
        """Read again; return whether the set of valid tokens may have changed."""
        try:
            data = await self._read()
            if hashlib.sha256(data).digest() == self._digest:
                self._failure = ""
                return False
            self._take(data)
        except ConfigError as error:
            self.stats.load_failures += 1
            if str(error) != self._failure:  # once, not at every check
                self._failure = str(error)
                _log.error("the changed %s is invalid, the previous one stays in use: %s", self._name, error)
            return False
        self._failure = ""
        _log.info("using the changed %s", self._name)
        return True

    def _take(self, data: bytes) -> None:
        self._check = self._make(data)
        self._digest = hashlib.sha256(data).digest()
        self.stats.loads += 1
